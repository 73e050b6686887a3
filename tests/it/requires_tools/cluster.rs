//! Tests of the PostgreSQL clusters that other tests use.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Cluster, wait_until};

/// Runs a statement as the role `plantstore`, over TCP and with a password.
fn as_plantstore(cluster: &Cluster, url: &str, more: &str, sql: &str) -> Result<String, String> {
    let mut psql = cluster.tool("psql");
    psql.args(["-X", "-A", "-t", "-q", "-c", sql, &format!("{url}?connect_timeout=10{more}")]);
    let output = psql.output().expect("psql runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn every_test_has_its_own_database() {
    let cluster = Cluster::shared();
    let (one, other) = (cluster.create_database(), cluster.create_database());
    assert_ne!(one, other);
    let made = as_plantstore(
        cluster,
        &cluster.url(&one),
        "",
        "CREATE TABLE public.plants (id bigint); INSERT INTO public.plants VALUES (7)",
    );
    made.expect("the owner may create a table");
    assert_eq!(cluster.psql(&one, "SELECT id FROM public.plants;\nSELECT 8"), "7\n8");
    assert_eq!(cluster.psql(&other, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"), "0");
    let about = "SELECT usesuper, current_setting('fsync'), current_setting('server_encoding') \
                 FROM pg_user WHERE usename = current_user";
    assert_eq!(as_plantstore(cluster, &cluster.url(&one), "", about).as_deref(), Ok("f|off|UTF8"));
    let wrong = cluster.url(&one).replace("only-for-tests", "wrong");
    assert!(
        as_plantstore(cluster, &wrong, "", "SELECT 1")
            .expect_err("the password is wrong")
            .contains("authentication failed")
    );
}

#[test]
fn a_session_holds_its_locks_until_it_is_dropped() {
    let cluster = Cluster::shared();
    let database = cluster.create_database();
    cluster.psql(&database, "CREATE TABLE public.plants (id bigint)");
    let locked = "SELECT count(*) FROM pg_locks \
                  WHERE mode = 'AccessExclusiveLock' AND relation = 'public.plants'::regclass";
    let held = cluster.hold(&database, "BEGIN; LOCK TABLE public.plants");
    assert_eq!(cluster.psql(&database, locked), "1");
    drop(held);
    wait_until("the lock to be released", || cluster.psql(&database, locked) == "0");
}

#[test]
fn committed_data_survives_a_kill_and_a_stop() {
    let cluster = Cluster::start(&["shared_buffers=16MB"]);
    assert_eq!(cluster.psql("postgres", "SHOW shared_buffers"), "16MB");
    let database = cluster.create_database();
    cluster.psql(&database, "CREATE TABLE public.plants (id bigint)");
    let held = cluster.hold(&database, "BEGIN; INSERT INTO public.plants VALUES (-1)");
    let ends: [fn(&Cluster); 4] = [Cluster::kill, Cluster::stop, Cluster::kill, Cluster::kill];
    for (id, end) in ends.iter().enumerate() {
        cluster.psql(&database, &format!("INSERT INTO public.plants VALUES ({id})"));
        end(&cluster);
        assert!(
            as_plantstore(&cluster, &cluster.url(&database), "", "SELECT 1").is_err(),
            "the server still accepts connections"
        );
        cluster.restart();
        assert_eq!(cluster.address().port(), cluster.port());
    }
    drop(held);
    assert_eq!(cluster.psql(&database, "SELECT id FROM public.plants"), "0\n1\n2\n3");
}

#[test]
fn frozen_cluster_responds_after_it_is_thawed() {
    let cluster = Cluster::start(&[]);
    let ways: [[fn(&Cluster); 2]; 2] =
        [[Cluster::freeze, Cluster::thaw], [Cluster::freeze_postmaster, Cluster::thaw_postmaster]];
    for [freeze, thaw] in ways {
        freeze(&cluster);
        let (done, response) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(cluster.psql("postgres", "SELECT 1")));
            // The kernel accepts the connection, but the server does not respond.
            let silence = response.recv_timeout(Duration::from_millis(300));
            thaw(&cluster);
            assert_eq!(silence, Err(mpsc::RecvTimeoutError::Timeout));
        });
        assert_eq!(response.recv().as_deref(), Ok("1"));
    }
    // A frozen server can be killed, and it does not block the end of the test.
    cluster.freeze();
    cluster.kill();
    cluster.restart();
    assert_eq!(cluster.psql("postgres", "SELECT 1"), "1");
    cluster.freeze();
}

#[test]
fn cluster_with_tls_has_a_verifiable_certificate() {
    let cluster = Cluster::start(&["ssl=on"]);
    let database = cluster.create_database();
    let verified = format!("&sslmode=verify-full&sslrootcert={}", cluster.data_directory().join("root.crt").display());
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(as_plantstore(&cluster, &cluster.url(&database), &verified, encrypted).as_deref(), Ok("t"));
    assert_eq!(as_plantstore(&cluster, &cluster.url(&database), "&sslmode=disable", encrypted).as_deref(), Ok("f"));
}

/// Returns the processes whose working directory is below this directory.
fn processes_in(directory: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("the processes").flatten().map(|entry| entry.path());
    let works_there =
        |process: &PathBuf| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
    processes.filter(works_there).collect()
}

fn is_removed(data: &Path) -> bool {
    !data.parent().expect("the parent of the data directory").exists() && processes_in(data).is_empty()
}

#[test]
fn dropped_cluster_is_removed() {
    let cluster = Cluster::start(&[]);
    let data = cluster.data_directory().to_owned();
    assert!(!processes_in(&data).is_empty());
    drop(cluster);
    wait_until("the server to be removed", || is_removed(&data));
}

/// Runs this test again in a child process, which is killed before it can clean up.
#[test]
fn cluster_is_removed_when_the_tests_are_killed() {
    const INNER: &str = "PLANTSTORE_TEST_STARTS_CLUSTER";
    #[expect(clippy::disallowed_methods, reason = "tells the child process apart")]
    if std::env::var_os(INNER).is_some() {
        let cluster = Cluster::start(&[]);
        cluster.freeze();
        #[expect(clippy::print_stdout, reason = "the parent process reads this line")]
        {
            println!("\ndata: {}", cluster.data_directory().display());
        }
        let _ = std::io::stdin().lines().count();
        return;
    }
    let mut inner = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "requires_tools::cluster::cluster_is_removed_when_the_tests_are_killed", "--nocapture"])
        .env(INNER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tests run");
    let mut lines = BufReader::new(inner.stdout.take().expect("standard output is piped")).lines();
    let data = lines.find_map(|line| line.expect("a line").strip_prefix("data: ").map(PathBuf::from));
    let data = data.expect("the line with the data directory");
    assert!(!processes_in(&data).is_empty());
    inner.kill().expect("the child process is killed");
    inner.wait().expect("the child process has ended");
    wait_until("the server to be removed", || is_removed(&data));
}
