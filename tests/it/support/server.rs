//! Temporary store of a test, and the plantstore binary running on it.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::postgres::{HeldSession, runs_on_citus};
use super::tools::{assert_declared, succeed};
use super::{Client, Cluster, CommandOutput, Engine, Metrics, TIMEOUT, TcpProxy, wait_for, wait_until};

/// `--store-timeout` of servers whose test does not set it. On a machine that is busy with other tests, a statement may
/// take longer than the default of 2 s.
const STORE_TIMEOUT: &str = "60s";

/// Shards of a table on Citus.
const CITUS_SHARDS: usize = 8;

/// Locks the tables of all shards on a worker of Citus, in the mode MODE. Nodes use these tables, so a lock of the distributed table
/// is not enough.
const LOCK_SHARDS: &str = "
    SET citus.enable_manual_changes_to_shards = on;
    BEGIN;
    DO $$ DECLARE id bigint; BEGIN
      FOR id IN SELECT shardid FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) JOIN pg_dist_local_group USING (groupid)
                WHERE logicalrelid = 'plantstore.collections'::regclass LOOP
        EXECUTE format('LOCK TABLE plantstore.collections_%s IN MODE', id);
      END LOOP;
    END $$";

/// Temporary directory of a test and, with PostgreSQL, a database. The directory is removed at the end of the test.
pub(crate) struct Store<'a> {
    pub(crate) engine: Engine,
    directory: Arc<TempDir>,
    /// `None` for SQLite.
    database: Option<Database<'a>>,
}

#[derive(Clone)]
struct Database<'a> {
    cluster: &'a Cluster,
    name: String,
    /// Address that the service connects to.
    address: SocketAddr,
    /// On Citus: the service connects to this address instead of each worker.
    is_only_address: bool,
    /// Removes the database at the end of the test.
    _cleanup: Option<Arc<DropDatabase>>,
}

/// A database of Citus on the shared cluster. It is removed with this value.
struct DropDatabase(String);

impl Drop for DropDatabase {
    fn drop(&mut self) {
        Cluster::shared().drop_database(&self.0);
    }
}

impl Store<'static> {
    /// Creates a store. On Citus its database is distributed; otherwise it has no schema yet.
    pub(crate) fn new(engine: Engine) -> Self {
        match engine {
            Engine::Postgres if runs_on_citus() => {
                let cluster = Cluster::shared();
                let name = cluster.copy_distributed_database(|| Self::on(cluster).database().name.clone());
                let cleanup = Arc::new(DropDatabase(name.clone()));
                let address = cluster.address();
                Self::of(Database { cluster, name, address, is_only_address: false, _cleanup: Some(cleanup) })
            }
            _ => Self::empty(engine),
        }
    }

    /// Creates an empty directory in memory, where a sync costs nothing, for files that only need to be checked.
    pub(crate) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory).map(Arc::new) } else { Ok(temporary()) };
        Self { engine: Engine::Sqlite, directory: directory.expect("a directory"), database: None }
    }

    /// Creates a store without a schema, on any engine. Its database is not distributed.
    pub(crate) fn empty(engine: Engine) -> Self {
        match engine {
            Engine::Sqlite => Self { engine, directory: temporary(), database: None },
            Engine::Postgres => Self::undistributed(Cluster::shared()),
        }
    }
}

impl<'a> Store<'a> {
    /// Creates a database on this server. On Citus all statements go through this server, so that the database fails with it.
    pub(crate) fn on(cluster: &'a Cluster) -> Self {
        let mut store = Self::distributed(cluster);
        if let Some(database) = &mut store.database {
            database.is_only_address = true;
        }
        store
    }

    /// Creates a database on this server. On Citus the service also connects to all workers.
    pub(crate) fn distributed(cluster: &'a Cluster) -> Self {
        let workers: Vec<SocketAddr> = cluster.workers().iter().map(Cluster::address).collect();
        Self::with_workers(cluster, &workers)
    }

    /// Creates a database on this server, and distributes it over workers of the cluster at these addresses.
    pub(crate) fn with_workers(cluster: &'a Cluster, workers: &[SocketAddr]) -> Self {
        let store = Self::undistributed(cluster);
        if !workers.is_empty() {
            cluster.connect_workers(&store.database().name, workers);
            let shards = (CITUS_SHARDS / workers.len()).to_string();
            succeed(&mut store.command(&["migrate", "--distribute", "citus", "--shards-per-worker", &shards]));
        }
        store
    }

    /// Creates a database without a schema on this server, even on Citus.
    pub(crate) fn undistributed(cluster: &'a Cluster) -> Self {
        let name = cluster.create_database();
        Self::of(Database { cluster, name, address: cluster.address(), is_only_address: false, _cleanup: None })
    }

    fn of(database: Database<'a>) -> Self {
        Self { engine: Engine::Postgres, directory: temporary(), database: Some(database) }
    }

    /// Returns a store with the same database, reached through a proxy.
    pub(crate) fn through(&self, proxy: &TcpProxy) -> Self {
        self.at(proxy.address())
    }

    /// Returns a store with the same database, reached at another address.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        let database = Database { address, ..self.database().clone() };
        Self { engine: self.engine, directory: temporary(), database: Some(database) }
    }

    fn database(&self) -> &Database<'a> {
        self.database.as_ref().expect("the engine is PostgreSQL")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the value of `--store`.
    pub(crate) fn url(&self) -> String {
        match self.engine {
            Engine::Sqlite => format!("sqlite:{}", self.file().display()),
            Engine::Postgres => {
                let Database { cluster, name, address, .. } = self.database();
                cluster.url_at(*address, name)
            }
        }
    }

    /// Returns the path of the SQLite file.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory().join("plants.db")
    }

    /// Runs SQL statements on the store from another connection.
    #[track_caller]
    pub(crate) fn execute(&self, statements: &str) {
        match self.engine {
            Engine::Sqlite => self.open_file().execute_batch(statements).expect("the statements run"),
            Engine::Postgres => drop(self.psql(statements)),
        }
    }

    /// Returns the first column of a query as integers.
    #[track_caller]
    pub(crate) fn rows(&self, statement: &str) -> Vec<i64> {
        match self.engine {
            Engine::Sqlite => self.query(statement),
            Engine::Postgres => self.texts(statement).iter().map(|text| text.parse().expect("a number")).collect(),
        }
    }

    /// Returns the first column of a query as texts.
    #[track_caller]
    pub(crate) fn texts(&self, statement: &str) -> Vec<String> {
        match self.engine {
            Engine::Sqlite => self.query(statement),
            Engine::Postgres => self.psql(statement).lines().map(str::to_owned).collect(),
        }
    }

    fn query<T: rusqlite::types::FromSql>(&self, statement: &str) -> Vec<T> {
        let file = self.open_file();
        let mut statement = file.prepare(statement).expect("a statement");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a value")).collect()
    }

    fn psql(&self, statements: &str) -> String {
        let Database { cluster, name, .. } = self.database();
        cluster.psql(name, statements)
    }

    /// Returns the first column of a query as integers, from all servers of the database: on Citus also from the workers.
    #[track_caller]
    pub(crate) fn rows_of_servers(&self, statement: &str) -> Vec<i64> {
        let Database { cluster, name, .. } = self.database();
        let texts = cluster.servers().map(|server| server.psql(name, statement));
        texts.flat_map(|text| text.lines().map(|line| line.parse().expect("a number")).collect::<Vec<_>>()).collect()
    }

    /// Returns the number of transactions that are neither committed nor rolled back, on Citus.
    pub(crate) fn prepared_transactions(&self) -> i64 {
        self.rows_of_servers("SELECT count(*) FROM pg_prepared_xacts").iter().sum()
    }

    /// Returns all stored data as bytes.
    pub(crate) fn contents(&self) -> Vec<u8> {
        match self.engine {
            Engine::Sqlite => {
                let files = std::fs::read_dir(self.directory()).expect("the directory");
                files.flat_map(|file| std::fs::read(file.expect("a file").path()).expect("the contents")).collect()
            }
            Engine::Postgres => {
                let tables = "SELECT relname FROM pg_class
                              WHERE relnamespace = 'plantstore'::regnamespace AND relkind IN ('r', 'p')";
                let tables = self.texts(tables).into_iter();
                tables.flat_map(|table| self.psql(&format!("COPY {table} TO STDOUT\n")).into_bytes()).collect()
            }
        }
    }

    /// Blocks writes of all other connections until the returned value is dropped. Reads are not blocked.
    #[must_use]
    pub(crate) fn hold_writes(&self) -> Box<dyn std::any::Any> {
        match self.engine {
            Engine::Sqlite => {
                let file = self.open_file();
                file.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
                Box::new(file)
            }
            Engine::Postgres => Box::new(self.hold_versions("EXCLUSIVE MODE")),
        }
    }

    /// Locks the versions of all users in this mode, on all servers.
    #[must_use]
    pub(crate) fn hold_versions(&self, mode: &str) -> Vec<HeldSession> {
        let Database { cluster, name, .. } = self.database();
        let mut held = vec![self.hold(&format!("BEGIN; LOCK TABLE plantstore.collections IN {mode}"))];
        let lock_shards = LOCK_SHARDS.replace("MODE", mode);
        held.extend(cluster.workers().iter().map(|worker| worker.hold(name, &lock_shards)));
        held
    }

    /// Waits until the last use of each token is stored. The server stores it in a separate commit after the request.
    pub(crate) fn wait_for_stored_token_use(&self) {
        wait_until("the stored last use of the token", || {
            !self.run(&["token", "list", "--json"]).stdout_text().contains(r#""last_used": null"#)
        });
    }

    /// Runs statements in a session on the database, which stays open until the returned value is dropped.
    #[track_caller]
    pub(crate) fn hold(&self, statements: &str) -> HeldSession {
        let Database { cluster, name, .. } = self.database();
        cluster.hold(name, statements)
    }

    /// Opens the SQLite file from the test.
    pub(crate) fn open_file(&self) -> rusqlite::Connection {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let file = rusqlite::Connection::open_with_flags(self.file(), flags).expect("the store's file");
        file.busy_timeout(TIMEOUT).expect("a busy timeout");
        file
    }

    /// Returns a plantstore command on this store and in this directory, without variables of the test's environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_through(&[], arguments)
    }

    /// Returns a plantstore command that another program runs, such as strace.
    pub(crate) fn command_through(&self, wrapper: &[&str], arguments: &[&str]) -> Command {
        self.command_of(&[wrapper, &[env!("CARGO_BIN_EXE_plantstore")]].concat(), arguments)
    }

    /// Returns a command of this program, which may be another release, and its first arguments.
    pub(crate) fn command_of(&self, words: &[&str], arguments: &[&str]) -> Command {
        if let Some(program) = words[..words.len() - 1].first().filter(|program| !["sh", "timeout"].contains(program)) {
            assert_declared(program);
        }
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(arguments).current_dir(self.directory());
        let inherited = std::env::vars_os().map(|(name, _)| name);
        inherited
            .filter(|name| {
                ["PLANTSTORE_", "PG", "OTEL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix))
            })
            .for_each(|name| {
                command.env_remove(name);
            });
        command.env("PLANTSTORE_STORE", self.url());
        // Spans are exported this many milliseconds after a request, instead of 5 seconds.
        command.env("OTEL_BSP_SCHEDULE_DELAY", "200");
        if arguments.contains(&"serve") {
            command.env("PLANTSTORE_STORE_TIMEOUT", STORE_TIMEOUT);
            if let Some(Database { cluster, address, is_only_address: true, .. }) = &self.database
                && !cluster.workers().is_empty()
            {
                let addresses = cluster.workers().iter().map(|worker| format!("{}={address}", worker.address()));
                command.env("PLANTSTORE_WORKER_ADDRESS", addresses.collect::<Vec<_>>().join(","));
            }
        }
        command
    }

    /// Runs a plantstore command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        // The timeout ends a server that was expected not to start.
        self.command_through(&["timeout", "240"], arguments).stdin(Stdio::null()).output().expect("the command runs")
    }

    /// Gives a user this role on the plants of another.
    #[track_caller]
    pub(crate) fn share(&self, owner: &str, grantee: &str, role: &str) {
        self.run(&["share", "grant", "--owner", owner, "--to", grantee, "--role", role]).success();
    }

    /// Creates a token for a user, and the store if it does not exist.
    #[track_caller]
    pub(crate) fn token(&self, user: &str, more: &[&str]) -> String {
        let arguments = [&["token", "create", "--create", "--user", user], more].concat();
        succeed(&mut self.command(&arguments)).trim_end().to_owned()
    }

    /// Returns all tokens as `token list` shows them.
    #[track_caller]
    pub(crate) fn tokens(&self) -> Vec<Value> {
        serde_json::from_value(self.run(&["token", "list", "--json"]).json()).expect("a list")
    }

    /// Returns the names of all users.
    #[track_caller]
    pub(crate) fn users(&self) -> Vec<String> {
        let users = self.run(&["user", "list", "--json"]).json();
        users.as_array().expect("a list").iter().map(|user| user["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Inserts `count` plants for the first user. `name` is the prefix of their names.
    pub(crate) fn insert_plants(&self, count: u32, name: &str) {
        self.execute(&format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
             INSERT INTO plants (user_id, plant_id, name, version) SELECT 1, n, '{name}' || n, 0 FROM numbers"
        ));
    }

    /// Starts a server on this store.
    #[track_caller]
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.serve_through(&[], arguments)
    }

    #[track_caller]
    pub(crate) fn serve_through(&self, wrapper: &[&str], arguments: &[&str]) -> Server {
        let fixed = ["serve", "--listen", "127.0.0.1:0", "--no-first-token"];
        let command = self.command_through(wrapper, &[&fixed, arguments].concat());
        Server::start_with(command, true, Some(Arc::clone(&self.directory)))
    }
}

fn temporary() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().expect("a temporary directory"))
}

/// A server process. It is killed at the end of the test.
pub(crate) struct Server {
    id: u32,
    child: Mutex<Child>,
    address: SocketAddr,
    output: Mutex<BufReader<ChildStdout>>,
    log: Arc<Mutex<String>>,
    log_reader: Mutex<Option<JoinHandle<()>>>,
    /// The directory of the store, which must outlive the server: a server whose file is deleted ends.
    _directory: Option<Arc<TempDir>>,
}

impl Server {
    /// Starts the command and waits until it prints its address.
    #[track_caller]
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with(command, true, None)
    }

    /// Starts a server whose standard error is not read.
    #[track_caller]
    pub(crate) fn start_unread(command: Command) -> Self {
        Self::start_with(command, false, None)
    }

    #[track_caller]
    fn start_with(mut command: Command, read_log: bool, directory: Option<Arc<TempDir>>) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let log = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&log);
        let log_reader = child.stderr.take_if(|_| read_log).map(|errors| {
            std::thread::spawn(move || {
                for line in BufReader::new(errors).lines() {
                    let line = line.unwrap_or_default();
                    shared.lock().expect("the log").push_str(&(line + "\n"));
                }
            })
        });
        let mut announced = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("standard output"));
        let listen = listen_argument(&command);
        if listen == "0" || listen.ends_with(":0") {
            output.read_line(&mut announced).expect("the address");
        } else {
            // Only the log has the address, and not at every level. A server that fails to start ends.
            let address = if listen.contains(':') { listen } else { format!("127.0.0.1:{listen}") };
            wait_until("the server to listen", || {
                if TcpStream::connect(&address).is_ok() {
                    announced = format!("Listening on http://{address}");
                }
                !announced.is_empty() || child.try_wait().is_ok_and(|status| status.is_some())
            });
        }
        let address = announced.trim_end().strip_prefix("Listening on http");
        let address = address.map(|address| address.trim_start_matches('s').trim_start_matches("://"));
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let _ = child.wait();
            let _ = log_reader.map(JoinHandle::join);
            panic!("the server did not start: {announced} {}", log.lock().expect("the log"));
        };
        Self {
            id: child.id(),
            child: Mutex::new(child),
            address,
            output: Mutex::new(output),
            log,
            log_reader: Mutex::new(log_reader),
            _directory: directory,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Waits for a log line, which may be written after the response.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, words: &str) {
        wait_until(words, || self.log().contains(words));
    }

    /// Returns the number of log lines that contain these words.
    pub(crate) fn logged(&self, words: &str) -> usize {
        self.log().lines().filter(|line| line.contains(words)).count()
    }

    /// Reads the address of the metrics listener from standard output. May be called once.
    #[track_caller]
    pub(crate) fn metrics(&self) -> Metrics {
        let mut announced = String::new();
        self.output.lock().expect("standard output").read_line(&mut announced).expect("standard output");
        let address =
            announced.trim_end().strip_prefix("Metrics on http://").and_then(|rest| rest.strip_suffix("/metrics"));
        let address = address.and_then(|address| address.parse().ok());
        Metrics::at(address.unwrap_or_else(|| panic!("an address for metrics, not {announced:?}")))
    }

    /// Returns what is left on its standard output after its end.
    pub(crate) fn rest_of_output(&self) -> String {
        std::io::read_to_string(&mut *self.output.lock().expect("standard output")).expect("text")
    }

    pub(crate) fn client(&self, token: &str) -> Client {
        Client { address: self.address, token: Some(token.to_owned()) }
    }

    pub(crate) fn anonymous(&self) -> Client {
        Client { address: self.address, token: None }
    }

    /// Returns its log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().expect("the process")
    }

    /// Returns the exit status if the process has ended; does not wait.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().expect("the state of the server")
    }

    /// Waits until the server has ended.
    #[track_caller]
    pub(crate) fn wait(&self) -> ExitStatus {
        let status = wait_for("the server to end", || self.ended());
        if let Some(reader) = self.log_reader.lock().expect("the log").take() {
            reader.join().expect("the whole log");
        }
        status
    }

    /// Sends SIGTERM and waits until the server has ended.
    #[track_caller]
    pub(crate) fn stop(&self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    /// Kills the server without a graceful shutdown.
    pub(crate) fn kill(&self) {
        self.child().kill().expect("the server is killed");
        self.child().wait().expect("the server has ended");
    }

    /// Returns the resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// Returns the peak of the resident memory in KiB.
    pub(crate) fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Returns the size of the address space in KiB.
    pub(crate) fn virtual_memory(&self) -> u64 {
        self.memory("VmSize:")
    }

    /// Returns the processor time that it has used.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("the state of the server");
        // The name of the program, in parentheses, may contain spaces.
        let fields = stat.rsplit_once(')').expect("the name of the program").1.split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the state of the server");
        let line = status.lines().find(|line| line.starts_with(field)).expect("the memory of the server");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child().kill();
        let _ = self.child().wait();
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "shown with the failure of the test")]
            {
                eprintln!("--- log of the server ---\n{}", self.log());
            }
        }
    }
}

/// Returns the address or port that a server is asked to listen on.
fn listen_argument(command: &Command) -> String {
    let arguments: Vec<_> = command.get_args().collect();
    let option = arguments.iter().position(|word| *word == "--listen").and_then(|at| arguments.get(at + 1).copied());
    let variable = || command.get_envs().find(|(name, _)| *name == "PLANTSTORE_LISTEN").and_then(|(_, value)| value);
    option.or_else(variable).map_or_else(|| "8080".to_owned(), |listen| listen.to_string_lossy().into_owned())
}

/// Sends a signal to a process that the test has started.
pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}
