//! PostgreSQL servers for the tests. They end when the test process ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::tools::assert_declared;
use super::{CommandOutput, wait_for, wait_until};

/// Password of the role `plantstore`, which owns the databases and is no superuser. On Citus also that of the superuser, with
/// which servers log in to each other.
const PASSWORD: &str = "only-for-tests";
/// The password as the server stores it, after one iteration of its hash instead of 4,096. Nodes whose connections are cut would
/// spend most of their time on those.
const STORED_PASSWORD: &str = "SCRAM-SHA-256$1:c2FsdCBvZiAxNiBieXRlcw==$9ED4fej6KqyEyfRdQtJvnTiNXbTIUEgTKUizSYqEvu8=:\
                               gLAcyl7a3nlHfHJugGPTNtJowcaw0yohqvRybWRb5LY=";

/// A PostgreSQL server with its own port and directory.
pub(crate) struct Cluster {
    supervisor: Mutex<Supervisor>,
    tools: PathBuf,
    directory: PathBuf,
    data: PathBuf,
    port: AtomicU16,
    databases: AtomicUsize,
    /// Workers of Citus, if the tests run on it.
    workers: Vec<Cluster>,
    /// Name of the database that distributed databases are copied from.
    template: OnceLock<String>,
}

impl Cluster {
    /// Returns the server for all tests that neither stop nor configure it. Each test creates its own database.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        assert_declared("postgres");
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// Starts a server for one test, with settings such as `fsync=on`. With `ssl=on` it has a certificate for
    /// 127.0.0.1; the certificate of its authority is `root.crt` in the data directory.
    pub(crate) fn start(settings: &[&str]) -> Self {
        assert_declared("postgres");
        if !runs_on_citus() {
            return Self::start_server(settings);
        }
        let settings = [CITUS_SETTINGS, settings].concat();
        let workers = (0..CITUS_WORKERS).map(|_| Self::start_server(&settings)).collect();
        let mut coordinator = Self::start_server(&settings);
        coordinator.workers = workers;
        for server in coordinator.servers() {
            server.psql("postgres", &format!("ALTER ROLE postgres PASSWORD '{STORED_PASSWORD}'"));
        }
        coordinator
    }

    /// Starts a server on a small file system in memory, in a mount namespace of its own.
    pub(crate) fn start_on_small_disk() -> Self {
        assert_declared("unshare");
        // Few segments of the log.
        let settings = ["max_wal_size=32MB", "min_wal_size=32MB"];
        Self::start_server_through(&["unshare", "--mount", "env", "DISK_SIZE=96m"], &settings)
    }

    fn start_server(settings: &[&str]) -> Self {
        Self::start_server_through(&[], settings)
    }

    fn start_server_through(wrapper: &[&str], settings: &[&str]) -> Self {
        let tools = tools();
        let mut supervisor = Supervisor::start(wrapper, &tools, settings);
        let mut directory = PathBuf::from(supervisor.read_line());
        if !wrapper.is_empty() {
            let root = PathBuf::from(format!("/proc/{}/root", supervisor.child.id()));
            directory = root.join(directory.strip_prefix("/").expect("an absolute path"));
        }
        let data = directory.join("data");
        // Another process may take the port first.
        let port = (0..10).map(|_| free_port()).find(|port| supervisor.run(&data, *port));
        let port = port.unwrap_or_else(|| panic!("PostgreSQL does not start:\n{}", log(&directory)));
        let cluster = Self {
            supervisor: Mutex::new(supervisor),
            tools,
            directory,
            data,
            port: AtomicU16::new(port),
            databases: AtomicUsize::new(0),
            workers: Vec::new(),
            template: OnceLock::new(),
        };
        cluster.psql("postgres", &format!("CREATE ROLE plantstore LOGIN PASSWORD '{STORED_PASSWORD}'"));
        cluster
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    pub(crate) fn data_directory(&self) -> &Path {
        &self.data
    }

    /// Creates an empty database that belongs to the role `plantstore`, and returns its name.
    pub(crate) fn create_database(&self) -> String {
        self.copy_database("template1")
    }

    fn copy_database(&self, template: &str) -> String {
        let name = format!("plants_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        for server in self.servers() {
            server.psql("postgres", &format!("CREATE DATABASE {name} OWNER plantstore TEMPLATE {template}"));
        }
        name
    }

    /// Creates a database of Citus as a copy, on each server, of one that `distribute` has set up. This takes a tenth of the
    /// time of setting up another one.
    pub(crate) fn copy_distributed_database(&self, distribute: impl FnOnce() -> String) -> String {
        let template = self.template.get_or_init(|| {
            let name = distribute();
            for server in self.servers() {
                // A database can be copied while no process uses it, including the background processes of Citus.
                server.psql("postgres", &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
                let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
                server.psql("postgres", &end);
            }
            name
        });
        let copy = self.copy_database(template);
        // The settings of a database are not copied with it.
        let settings = format!(
            "SELECT format('ALTER DATABASE {copy} SET %s;', unnest(setconfig))
             FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase WHERE datname = '{template}'"
        );
        for server in self.servers() {
            server.psql("postgres", &server.psql("postgres", &settings));
        }
        copy
    }

    /// Removes a database of Citus, for which each server runs a background process.
    pub(crate) fn drop_database(&self, name: &str) {
        for server in self.servers() {
            let mut session = server.session("postgres");
            let statement = format!("DROP DATABASE {name} WITH (FORCE)");
            // It stays if a transaction is still prepared.
            let _ = session.stdin.take().expect("standard input is piped").write_all(statement.as_bytes());
            let _ = session.wait_with_output();
        }
    }

    /// Returns this server and, on Citus, the workers.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.workers)
    }

    /// Makes the servers of this database known to each other, on Citus, with the workers at these addresses.
    pub(crate) fn connect_workers(&self, database: &str, workers: &[SocketAddr]) {
        for server in self.servers() {
            server.psql(database, "CREATE EXTENSION citus");
            for role in ["postgres", "plantstore"] {
                let password = format!("(0, '{role}', 'password={PASSWORD}')");
                server.psql(database, &format!("INSERT INTO pg_dist_authinfo VALUES {password}"));
            }
        }
        let node = |address: SocketAddr| format!("'{}', {}", address.ip(), address.port());
        self.psql(database, &format!("SELECT citus_set_coordinator_host({})", node(self.address())));
        for worker in workers {
            self.psql(database, &format!("SELECT citus_add_node({})", node(*worker)));
        }
    }

    pub(crate) fn workers(&self) -> &[Self] {
        &self.workers
    }

    /// Returns the value of `--store` for a database.
    pub(crate) fn url(&self, database: &str) -> String {
        self.url_at(self.address(), database)
    }

    /// Returns the value of `--store` for a database behind a proxy with this address.
    #[expect(clippy::unused_self, reason = "the URL leads to a database of this server")]
    pub(crate) fn url_at(&self, address: SocketAddr, database: &str) -> String {
        format!("postgres://plantstore:{PASSWORD}@{address}/{database}")
    }

    /// Returns the command for a program of PostgreSQL, such as `pg_dump`.
    pub(crate) fn tool(&self, name: &str) -> Command {
        Command::new(self.tools.join(name))
    }

    /// Runs statements as the superuser, each in a transaction of its own, and returns their output.
    #[track_caller]
    pub(crate) fn psql(&self, database: &str, sql: &str) -> String {
        let mut session = self.session(database);
        // If psql ends early, its error output says why.
        let _ = session.stdin.take().expect("standard input is piped").write_all(sql.as_bytes());
        let output = session.wait_with_output().expect("psql ends");
        let stderr = output.stdout_text().trim().to_owned();
        assert!(output.status.success(), "{sql}: {stderr} {}", output.stderr_text());
        stderr
    }

    /// Opens a session of the superuser, runs statements such as `BEGIN; LOCK TABLE …`, and keeps the session open.
    #[track_caller]
    pub(crate) fn hold(&self, database: &str, sql: &str) -> HeldSession {
        let mut held = HeldSession(self.session(database));
        let input = held.0.stdin.as_mut().expect("standard input is piped");
        let _ = input.write_all(format!("{sql};\n\\echo held\n").as_bytes());
        let output = BufReader::new(held.0.stdout.as_mut().expect("standard output is piped"));
        if !output.lines().any(|line| line.expect("a line of text") == "held") {
            let mut errors = String::new();
            held.0.stderr.take().expect("standard error is piped").read_to_string(&mut errors).expect("text");
            panic!("{sql}: {errors}");
        }
        held
    }

    /// Fills the small disk up to a small rest. PostgreSQL has a free segment of its log then, without which it would end.
    pub(crate) fn fill_disk(&self) {
        const REST: u64 = 256 << 10;
        self.psql("postgres", "SELECT pg_switch_wal(); CHECKPOINT;");
        let mut filler = std::fs::File::create(self.data.join("filler")).expect("a file");
        let zeros = vec![0; 64 << 10];
        while filler.write_all(&zeros).is_ok() {}
        let length = filler.metadata().expect("its length").len();
        filler.set_len(length.saturating_sub(REST)).expect("a shorter file");
    }

    pub(crate) fn free_disk(&self) {
        std::fs::remove_file(self.data.join("filler")).expect("the filler is removed");
    }

    /// Kills all processes of the server at the same moment, so that none can write anything more.
    pub(crate) fn kill(&self) {
        self.freeze_postmaster();
        wait_until_ended(&self.command("all KILL"));
    }

    /// Shuts the server down cleanly and disconnects its clients.
    pub(crate) fn stop(&self) {
        wait_until_ended(&self.command("one INT"));
    }

    /// Starts the server again after it has ended, with the same port and data.
    pub(crate) fn restart(&self) {
        let mut supervisor = self.supervisor.lock().expect("the supervisor");
        assert!(ended(supervisor.server), "the server is still running");
        // A connection of another process may use the port meanwhile.
        wait_until("the port of the database server", || supervisor.run(&self.data, self.port()));
    }

    /// Starts the server again after it has ended, with the same data and another port, as a failover does.
    #[cfg(feature = "citus")]
    pub(crate) fn restart_elsewhere(&self) {
        self.port.store(free_port(), Ordering::Relaxed);
        self.restart();
    }

    /// Stops all processes of the server with SIGSTOP. Connections stay open and get no response.
    pub(crate) fn freeze(&self) {
        self.freeze_postmaster();
        wait_until_frozen(&self.command("all STOP"));
    }

    pub(crate) fn thaw(&self) {
        self.command("all CONT");
    }

    /// Stops the process that accepts connections with SIGSTOP. Open connections continue to work.
    pub(crate) fn freeze_postmaster(&self) {
        wait_until_frozen(&self.command("one STOP"));
    }

    pub(crate) fn thaw_postmaster(&self) {
        self.command("one CONT");
    }

    /// Sends a command to the supervisor. Returns the ids of the signalled processes, the postmaster first.
    fn command(&self, command: &str) -> Vec<u32> {
        self.supervisor.lock().expect("the supervisor").command(command)
    }

    /// Starts psql with the search path of the service. It waits for a frozen server for at most 300 s.
    fn session(&self, database: &str) -> Child {
        Command::new("timeout")
            .arg("300")
            .arg(self.tools.join("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database])
            .args(["-p", &self.port().to_string(), "-h"])
            .arg(&self.directory)
            .env("PGOPTIONS", "-c search_path=plantstore,pg_temp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("psql runs")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "shown with the failure of the test")]
            {
                eprintln!("--- log of PostgreSQL ---\n{}", log(&self.directory));
            }
        }
        let supervisor = self.supervisor.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(supervisor.input.take());
        let _ = supervisor.child.wait();
    }
}

/// A session that holds its locks until it is dropped.
pub(crate) struct HeldSession(Child);

impl HeldSession {
    /// Sends another statement of the transaction, and does not wait for it.
    pub(crate) fn send(&mut self, sql: &str) {
        let input = self.0.stdin.as_mut().expect("standard input is piped");
        input.write_all(format!("{sql};\n").as_bytes()).expect("psql");
    }

    /// Waits until all statements have been executed, and ends the transaction. Panics if a statement has failed.
    pub(crate) fn finish(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().expect("psql");
        assert!(status.success(), "a statement failed: {status}");
    }
}

impl Drop for HeldSession {
    fn drop(&mut self) {
        // At the end of its input psql disconnects, and the server releases its locks.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// `postgres.sh`, the parent of the server. When the tests end, it kills the server and removes its directory.
struct Supervisor {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    server: u32,
}

impl Supervisor {
    fn start(wrapper: &[&str], tools: &Path, settings: &[&str]) -> Self {
        let words = [wrapper, &["sh"]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .args(["-c", include_str!("postgres.sh"), "postgres.sh"])
            .arg(tools)
            .arg(env!("CARGO_TARGET_TMPDIR"))
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt at the terminal of the tests must not interrupt the cleanup.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        Self { input: child.stdin.take(), child, output, server: 0 }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "the supervisor of PostgreSQL has ended");
        line.trim_end().to_owned()
    }

    fn command(&mut self, command: &str) -> Vec<u32> {
        writeln!(self.input.as_mut().expect("standard input is piped"), "{command}")
            .expect("the supervisor reads the command");
        self.read_line().split(' ').filter_map(|process| process.parse().ok()).collect()
    }

    /// Starts the server and waits until it accepts connections. Returns false if it ends instead.
    fn run(&mut self, data: &Path, port: u16) -> bool {
        let server = self.command(&format!("start {port}"))[0];
        self.server = server;
        wait_for("the database server to be ready", || {
            // Line 1 is the process id, line 8 the state.
            let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            let lines: Vec<&str> = file.lines().map(str::trim).collect();
            if lines.first() == Some(&server.to_string().as_str()) && lines.get(7) == Some(&"ready") {
                return Some(true);
            }
            ended(server).then_some(false)
        })
    }
}

/// Number of workers of a cluster on Citus.
const CITUS_WORKERS: usize = 2;
/// Settings of its servers. Prepared transactions of a lost server are resolved soon.
const CITUS_SETTINGS: &[&str] = &[
    "shared_preload_libraries=citus",
    // Citus would enable TLS with a certificate that no client accepts.
    "ssl=off",
    "citus.node_conninfo=sslmode=disable",
    "citus.recover_2pc_interval=1s",
    "citus.enable_unsafe_triggers=on",
    "wal_level=logical",
    "max_prepared_transactions=100",
    "max_worker_processes=100",
];

/// Returns true if `scripts/distributed` runs the tests: every database is distributed over several servers.
pub(crate) fn runs_on_citus() -> bool {
    #[expect(clippy::disallowed_methods, reason = "tests have no command line of their own")]
    std::env::var_os("PLANTSTORE_TEST_CITUS").is_some()
}

/// Directory of PostgreSQL's programs: `PG_BIN`, or the newest version where Debian installs it.
fn tools() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "tests have no command line of their own")]
    if let Some(given) = std::env::var_os("PG_BIN") {
        return given.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |name: &str| name.parse::<u32>().ok();
    let newest = versions.filter_map(|entry| version(entry.file_name().to_str()?)).max();
    let newest = newest.expect("PostgreSQL is not installed: run scripts/test, which installs it");
    PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"))
}

/// Returns a port that no process listens on and that the kernel gives to no other socket: it is below the ephemeral
/// ports (32768 and above by default).
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let candidate = || 20_000 + (std::process::id() * 100 + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
    let mut ports = std::iter::repeat_with(candidate).map(|port| u16::try_from(port).expect("a port"));
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("a free port")
}

/// An address at which no server listens, because its port is privileged.
pub(crate) const CLOSED_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// Returns the state letter of a process from `/proc`; `None` if the process does not exist.
fn state(process: u32) -> Option<char> {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    state.rsplit_once(") ").and_then(|(_, state)| state.chars().next())
}

/// Returns true if a process has ended, also while its parent has not reaped it.
pub(super) fn ended(process: u32) -> bool {
    matches!(state(process), None | Some('Z' | 'X'))
}

fn wait_until_ended(processes: &[u32]) {
    wait_until("the end of PostgreSQL", || processes.iter().all(|process| ended(*process)));
}

fn wait_until_frozen(processes: &[u32]) {
    let frozen = |process: &u32| state(*process) == Some('T') || ended(*process);
    wait_until("PostgreSQL to freeze", || processes.iter().all(frozen));
}
