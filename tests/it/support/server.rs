//! Site of a store, and the real binary running on it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::postgres::HeldSession;
use super::tools::assert_declared;
use super::{Client, Cluster, Engine, Metrics, Proxy, TIMEOUT, wait_for};

/// Place for a new store of one engine: a temporary directory, and a database for PostgreSQL. Removed with the test.
pub(crate) struct Site<'a> {
    pub(crate) engine: Engine,
    directory: Arc<TempDir>,
    /// For the engine that has one.
    database: Option<Database<'a>>,
}

#[derive(Clone)]
struct Database<'a> {
    cluster: &'a Cluster,
    name: String,
    /// Address that the service connects to.
    address: SocketAddr,
}

impl Site<'static> {
    pub(crate) fn new(engine: Engine) -> Self {
        match engine {
            Engine::Sqlite => Self { engine, directory: temporary(), database: None },
            Engine::Postgres => Self::on(Cluster::shared()),
        }
    }
}

impl<'a> Site<'a> {
    /// A new database on this server.
    pub(crate) fn on(cluster: &'a Cluster) -> Self {
        let database = Database { cluster, name: cluster.create_database(), address: cluster.address() };
        Self { engine: Engine::Postgres, directory: temporary(), database: Some(database) }
    }

    /// The same database by way of a proxy.
    pub(crate) fn through(&self, proxy: &Proxy) -> Self {
        let database = Database { address: proxy.address(), ..self.database().clone() };
        Self { engine: self.engine, directory: temporary(), database: Some(database) }
    }

    fn database(&self) -> &Database<'a> {
        self.database.as_ref().expect("an engine with a database")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The store as `--store` names it.
    pub(crate) fn url(&self) -> String {
        match self.engine {
            Engine::Sqlite => format!("sqlite:{}", self.file().display()),
            Engine::Postgres => {
                let Database { cluster, name, address } = self.database();
                cluster.url_at(*address, name)
            }
        }
    }

    /// The file of an embedded store.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory().join("plants.db")
    }

    /// Runs statements on the store as another program does.
    #[track_caller]
    pub(crate) fn execute(&self, statements: &str) {
        match self.engine {
            Engine::Sqlite => self.open_file().execute_batch(statements).expect("the statements run"),
            Engine::Postgres => drop(self.psql(statements)),
        }
    }

    /// The whole numbers that a statement finds in the store.
    #[track_caller]
    pub(crate) fn rows(&self, statement: &str) -> Vec<i64> {
        match self.engine {
            Engine::Sqlite => self.query(statement),
            Engine::Postgres => self.texts(statement).iter().map(|text| text.parse().expect("a number")).collect(),
        }
    }

    /// The texts that a statement finds in the store.
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
        cluster.psql(name, &format!("SET search_path TO plantstore; {statements}"))
    }

    /// Everything that is stored, as bytes.
    pub(crate) fn contents(&self) -> Vec<u8> {
        match self.engine {
            Engine::Sqlite => {
                let files = std::fs::read_dir(self.directory()).expect("the directory");
                files.flat_map(|file| std::fs::read(file.expect("a file").path()).expect("its bytes")).collect()
            }
            Engine::Postgres => {
                let tables = [
                    "users",
                    "departed_users",
                    "tokens",
                    "collections",
                    "plants",
                    "writers",
                    "idempotency_keys",
                    "shares",
                ];
                tables.map(|table| self.psql(&format!("COPY {table} TO STDOUT"))).join("\n").into_bytes()
            }
        }
    }

    /// Blocks writes of all other connections until it is dropped; reads go on.
    #[must_use]
    pub(crate) fn hold_writes(&self) -> Box<dyn std::any::Any> {
        match self.engine {
            Engine::Sqlite => {
                let file = self.open_file();
                file.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
                Box::new(file)
            }
            Engine::Postgres => Box::new(self.hold("BEGIN; LOCK TABLE plantstore.collections IN EXCLUSIVE MODE")),
        }
    }

    /// Waits until the use of the last token is stored, which takes a commit of its own.
    pub(crate) fn wait_for_note_of_use(&self) {
        wait_for("the note of its use", || {
            let output = self.run(&["token", "list", "--json"]);
            (!String::from_utf8_lossy(&output.stdout).contains(r#""last_used": null"#)).then_some(())
        });
    }

    /// A session on the database that has run these statements, and stays.
    #[track_caller]
    pub(crate) fn hold(&self, statements: &str) -> HeldSession {
        let Database { cluster, name, .. } = self.database();
        cluster.hold(name, statements)
    }

    /// The file of an embedded store, as another program opens it.
    pub(crate) fn open_file(&self) -> rusqlite::Connection {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
        let file = rusqlite::Connection::open_with_flags(self.file(), flags).expect("the store's file");
        file.busy_timeout(TIMEOUT).expect("a patient connection");
        file
    }

    /// The command, on this store, in this directory, untouched by the environment of the tests.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_through(&[], arguments)
    }

    /// The command run by another one, such as a tracer.
    pub(crate) fn command_through(&self, wrapper: &[&str], arguments: &[&str]) -> Command {
        if let Some(program) = wrapper.first().filter(|program| !["sh", "timeout"].contains(program)) {
            assert_declared(program);
        }
        let words: Vec<&str> = wrapper.iter().copied().chain([env!("CARGO_BIN_EXE_plantstore")]).collect();
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
        command
    }

    /// Runs one of the operator's commands to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        // Should it be a server that was to be rejected and was not: it ends all the same.
        self.command_through(&["timeout", "60"], arguments).stdin(Stdio::null()).output().expect("the command runs")
    }

    /// A new token of this user, in a new store if there is none.
    #[track_caller]
    pub(crate) fn token(&self, user: &str, more: &[&str]) -> String {
        let output = self.run(&[&["token", "create", "--create", "--user", user], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    }

    /// Gives the first user this many plants, whose names begin like this.
    pub(crate) fn plant_many(&self, count: u32, name: &str) {
        self.execute(&format!(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
             INSERT INTO plants (user_id, plant_id, name, version) SELECT 1, n, '{name}' || n, 0 FROM numbers"
        ));
    }

    /// A server on this store, with short waits at the end of a test.
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

/// The service in a process of its own; ended with the test.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    output: BufReader<ChildStdout>,
    log: Arc<Mutex<String>>,
    log_reader: Option<JoinHandle<()>>,
    /// The directory of its store, which must not go before it: a server whose file is deleted ends.
    _directory: Option<Arc<TempDir>>,
}

impl Server {
    /// Starts the command and waits until it prints its address.
    #[track_caller]
    pub(crate) fn start(command: Command) -> Self {
        Self::start_with(command, true, None)
    }

    /// The same, without a reader of its log.
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
        output.read_line(&mut announced).expect("the address");
        let address = announced.trim_end().strip_prefix("Listening on http");
        let address = address.map(|address| address.trim_start_matches('s').trim_start_matches("://"));
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let _ = child.wait();
            let _ = log_reader.map(JoinHandle::join);
            panic!("the server did not start: {announced} {}", log.lock().expect("the log"));
        };
        Self { child, address, output, log, log_reader, _directory: directory }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads the address of the metrics listener from its output; may be called once.
    #[track_caller]
    pub(crate) fn metrics(&mut self) -> Metrics {
        let mut announced = String::new();
        self.output.read_line(&mut announced).expect("another line");
        let address =
            announced.trim_end().strip_prefix("Metrics on http://").and_then(|rest| rest.strip_suffix("/metrics"));
        let address = address.and_then(|address| address.parse().ok());
        Metrics::at(address.unwrap_or_else(|| panic!("an address for metrics, not {announced:?}")))
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

    /// Returns the exit status if the process has ended; does not wait.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the state of the server")
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let status = wait_for("the end of the server", || self.ended());
        if let Some(reader) = self.log_reader.take() {
            reader.join().expect("the whole log");
        }
        status
    }

    /// Stops it with SIGTERM and waits for its end.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    /// Kills it without a graceful shutdown.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the server killed");
        self.child.wait().expect("the server's end");
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most that it has ever been.
    pub(crate) fn peak(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the state of the server");
        let line = status.lines().find(|line| line.starts_with(field)).expect("its resident memory");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "shown with the failure of the test")]
            {
                eprintln!("--- log of the server ---\n{}", self.log());
            }
        }
    }
}

/// Sends a signal to a process of ours.
pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}
