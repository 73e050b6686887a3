//! PostgreSQL servers for the tests, which end with them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::tools::assert_declared;
use super::wait_for;

/// Of the role `plantstore`, which owns the databases and is no superuser.
const PASSWORD: &str = "only-for-tests";

/// A server with a port and a directory to itself.
pub(crate) struct Cluster {
    supervisor: Mutex<Supervisor>,
    tools: PathBuf,
    directory: PathBuf,
    data: PathBuf,
    port: u16,
    databases: AtomicUsize,
}

impl Cluster {
    /// The one for all tests that leave it as it is; each takes a database of its own.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        assert_declared("postgres");
        // No test needs it to survive a power failure, so it need not wait for the disk.
        SHARED.get_or_init(|| Self::start(&["fsync=off"]))
    }

    /// One for a test that breaks it, with settings such as `fsync=off`. With `ssl=on` it has a certificate for
    /// 127.0.0.1 from an authority whose own is `root.crt` in the data directory.
    pub(crate) fn start(settings: &[&str]) -> Self {
        assert_declared("postgres");
        let tools = tools();
        let mut supervisor = Supervisor::start(&tools, settings);
        let directory = PathBuf::from(supervisor.read_line());
        let data = directory.join("data");
        // Another process may take the port first.
        let port = (0..10).map(|_| free_port()).find(|port| supervisor.run(&data, *port));
        let port = port.unwrap_or_else(|| panic!("PostgreSQL does not start:\n{}", log(&directory)));
        let cluster =
            Self { supervisor: Mutex::new(supervisor), tools, directory, data, port, databases: AtomicUsize::new(0) };
        cluster.psql("postgres", &format!("CREATE ROLE plantstore LOGIN PASSWORD '{PASSWORD}'"));
        cluster
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn data_directory(&self) -> &Path {
        &self.data
    }

    /// A new, empty database that belongs to the role `plantstore`.
    pub(crate) fn create_database(&self) -> String {
        let name = format!("plants_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name} OWNER plantstore"));
        name
    }

    /// The database as `--store` names it.
    pub(crate) fn url(&self, database: &str) -> String {
        self.url_at(self.address(), database)
    }

    /// The same by way of another address, that of a proxy.
    #[expect(clippy::unused_self, reason = "it is the way to this server's database")]
    pub(crate) fn url_at(&self, address: SocketAddr, database: &str) -> String {
        format!("postgres://plantstore:{PASSWORD}@{address}/{database}")
    }

    /// One of PostgreSQL's own programs.
    pub(crate) fn tool(&self, name: &str) -> Command {
        Command::new(self.tools.join(name))
    }

    /// Runs statements as the superuser, each in a transaction of its own, and returns their output.
    #[track_caller]
    pub(crate) fn psql(&self, database: &str, sql: &str) -> String {
        let mut session = self.session(database);
        // If it does not read them, its error says why.
        let _ = session.stdin.take().expect("its input").write_all(sql.as_bytes());
        let output = session.wait_with_output().expect("the end of psql");
        let stderr = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "{sql}: {stderr} {}", String::from_utf8_lossy(&output.stderr));
        stderr
    }

    /// A session of the superuser that has run these statements, such as `BEGIN; LOCK TABLE …`, and stays.
    #[track_caller]
    pub(crate) fn hold(&self, database: &str, sql: &str) -> HeldSession {
        let mut held = HeldSession(self.session(database));
        let input = held.0.stdin.as_mut().expect("its input");
        let _ = input.write_all(format!("{sql};\n\\echo held\n").as_bytes());
        let output = BufReader::new(held.0.stdout.as_mut().expect("its output"));
        if !output.lines().any(|line| line.expect("its words") == "held") {
            let mut errors = String::new();
            held.0.stderr.take().expect("its errors").read_to_string(&mut errors).expect("text");
            panic!("{sql}: {errors}");
        }
        held
    }

    /// Kills all of its processes at once, without a chance to write anything.
    pub(crate) fn kill(&self) {
        self.freeze_postmaster();
        wait_until_ended(&self.order("all KILL"));
    }

    /// Shuts it down cleanly, without waiting for its clients.
    pub(crate) fn stop(&self) {
        wait_until_ended(&self.order("one INT"));
    }

    /// Starts it again after its end, on the same port and data.
    pub(crate) fn restart(&self) {
        let mut supervisor = self.supervisor.lock().expect("the supervisor");
        assert!(ended(supervisor.server), "it runs already");
        // Meanwhile a connection of another process may have taken the port.
        wait_for("the port of the database server", || supervisor.run(&self.data, self.port).then_some(()));
    }

    /// Stops the time for all of its processes: connections are open, and silent.
    pub(crate) fn freeze(&self) {
        self.freeze_postmaster();
        wait_until_frozen(&self.order("all STOP"));
    }

    pub(crate) fn thaw(&self) {
        self.order("all CONT");
    }

    /// Stops the time for the process that takes connections; those that are open go on.
    pub(crate) fn freeze_postmaster(&self) {
        wait_until_frozen(&self.order("one STOP"));
    }

    pub(crate) fn thaw_postmaster(&self) {
        self.order("one CONT");
    }

    /// Its processes, the first one first.
    fn order(&self, order: &str) -> Vec<u32> {
        self.supervisor.lock().expect("the supervisor").order(order)
    }

    /// Starts a session that waits for a frozen server, but not forever.
    fn session(&self, database: &str) -> Child {
        Command::new("timeout")
            .arg("300")
            .arg(self.tools.join("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database])
            .args(["-p", &self.port.to_string(), "-h"])
            .arg(&self.directory)
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

/// A session that holds what it has until it is dropped.
pub(crate) struct HeldSession(Child);

impl Drop for HeldSession {
    fn drop(&mut self) {
        // At the end of its input psql disconnects, and the server releases its locks.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// `postgres.sh`, the server's parent: it outlives the tests just long enough to remove what is theirs.
struct Supervisor {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    server: u32,
}

impl Supervisor {
    fn start(tools: &Path, settings: &[&str]) -> Self {
        let mut child = Command::new("sh")
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
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { input: child.stdin.take(), child, output, server: 0 }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "the supervisor of PostgreSQL has ended");
        line.trim_end().to_owned()
    }

    fn order(&mut self, order: &str) -> Vec<u32> {
        writeln!(self.input.as_mut().expect("its input"), "{order}").expect("the order given");
        self.read_line().split(' ').filter_map(|process| process.parse().ok()).collect()
    }

    /// Starts the server and waits until it takes connections; false if it ends instead.
    fn run(&mut self, data: &Path, port: u16) -> bool {
        let server = self.order(&format!("start {port}"))[0];
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

/// A port that nothing listens on and that the kernel gives to no other socket: it is below the range that sockets
/// without a chosen port get (32768 and above by default).
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let candidate = || 20_000 + (std::process::id() * 100 + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
    let mut ports = std::iter::repeat_with(candidate).map(|port| u16::try_from(port).expect("a port"));
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("a free port")
}

/// An address where connections are rejected: tests do not listen on a reserved port.
pub(crate) const CLOSED_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// The letter for the state of a process, as the kernel shows it; none after its end.
fn state(process: u32) -> Option<char> {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    state.rsplit_once(") ").and_then(|(_, state)| state.chars().next())
}

/// Ended, even if its parent has not taken note yet.
pub(super) fn ended(process: u32) -> bool {
    matches!(state(process), None | Some('Z' | 'X'))
}

fn wait_until_ended(processes: &[u32]) {
    wait_for("the end of PostgreSQL", || processes.iter().all(|process| ended(*process)).then_some(()));
}

fn wait_until_frozen(processes: &[u32]) {
    let frozen = |process: &u32| state(*process) == Some('T') || ended(*process);
    wait_for("PostgreSQL to freeze", || processes.iter().all(frozen).then_some(()));
}
