//! TLS: certificates and their keys, reload without a pause, handshake timeouts, and both protocols.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::http2::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, PING, frame, head};
use crate::support::issuer::Authority;
use crate::support::tools::succeed;
use crate::support::{
    Client, CommandOutput, Connection, Engine, JSON, Server, Store, TIMEOUT, Terminal, assert_contains, engine_test,
    wait_for, wait_until,
};

const LIVE: &str = r#"{"status":"live"}"#;
const RENEWED: &str = "new certificate loaded";
const NOT_RENEWED: &str = "certificate not reloaded: the previous one stays in use";

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// The files of a server's certificate, which can be replaced, and the authority that signs them.
struct TlsFiles {
    authority: Authority,
    certificate: String,
    key: String,
}

impl TlsFiles {
    fn new() -> Self {
        let authority = Authority::new();
        let [certificate, key] = ["shown.crt", "shown.key"].map(|name| authority.path(name).display().to_string());
        let files = Self { authority, certificate, key };
        files.install_certificate("server");
        files.install_key("server");
        files
    }

    fn install_certificate(&self, name: &str) {
        fs::copy(self.authority.path(&format!("{name}.crt")), &self.certificate).unwrap();
    }

    fn install_key(&self, name: &str) {
        fs::copy(self.authority.path(&format!("{name}.key")), &self.key).unwrap();
    }

    fn options(&self) -> [&str; 4] {
        ["--tls-cert", &self.certificate, "--tls-key", &self.key]
    }

    #[track_caller]
    fn serve(&self, store: &Store, more: &[&str]) -> Server {
        store.serve(&[&self.options(), more].concat())
    }

    /// Returns the configuration of a client that trusts only the authority.
    fn trusting(&self, protocol: &str) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for certificate in rustls::pki_types::pem::PemObject::pem_file_iter(self.authority.file()).unwrap() {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        config
    }

    /// Opens an encrypted connection with this protocol.
    #[track_caller]
    fn connect(&self, address: SocketAddr, protocol: &str) -> Encrypted {
        self.try_connect(address, protocol).expect("an encrypted connection")
    }

    fn try_connect(&self, address: SocketAddr, protocol: &str) -> std::io::Result<Encrypted> {
        let name = ServerName::from(address.ip());
        let mut connection = ClientConnection::new(Arc::new(self.trusting(protocol)), name).expect("a client");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(connection, stream))
    }

    /// Returns true if a new connection gets the certificate of this name.
    fn presents(&self, address: SocketAddr, name: &str) -> bool {
        let file = self.authority.path(&format!("{name}.crt"));
        let expected = <rustls::pki_types::CertificateDer as rustls::pki_types::pem::PemObject>::from_pem_file(file);
        let stream = self.connect(address, "http/1.1");
        stream.conn.peer_certificates().expect("a certificate")[0] == expected.unwrap()
    }

    /// Returns the expiry time of the certificate of this name, in seconds since 1970.
    fn end_of(&self, name: &str) -> i64 {
        let script = r#"date -u +%s -d "$(openssl x509 -noout -enddate -in "$0" | cut -d= -f2)""#;
        let file = self.authority.path(&format!("{name}.crt"));
        let output = Command::new("sh").args(["-c", script]).arg(file).output().expect("a shell");
        output.stdout_text().trim_end().parse().expect("seconds")
    }

    /// Runs `curl` with these arguments, and returns its output and the protocol version.
    #[track_caller]
    fn curl(&self, arguments: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "30", "--write-out", " HTTP/%{http_version}", "--cacert"]);
        succeed(curl.arg(self.authority.file()).args(arguments))
    }
}

/// Sends a request, and reads until its response ends with these words.
#[track_caller]
fn ask(stream: &mut (impl Read + Write), request: &[u8], end: &str) -> String {
    stream.write_all(request).expect("a request sent");
    stream.flush().expect("the request is sent");
    let (mut response, mut buffer) = (String::new(), [0; 4_096]);
    while !response.ends_with(end) {
        let length = stream.read(&mut buffer).expect("a response");
        assert_ne!(length, 0, "the connection ended after {response}");
        response.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    response
}

/// Returns a store for tests that do not depend on the engine.
fn store() -> Store<'static> {
    Store::new(Engine::Sqlite)
}

const LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";

engine_test!(service_works_over_tls_in_both_versions_and_protocols, |store: &Store| {
    let files = TlsFiles::new();
    let server = files.serve(store, &[]);
    let bearer = format!("Authorization: Bearer {}", store.token("ada", &[]));
    let plants = format!("https://{}/plants", server.address());
    let ways: [&[&str]; 4] = [
        &["--tlsv1.3", "--http2"],
        &["--tlsv1.3", "--http1.1"],
        &["--tlsv1.2", "--tls-max", "1.2", "--http2"],
        &["--tlsv1.2", "--tls-max", "1.2", "--http1.1"],
    ];
    for way in ways {
        let spoken = if way.contains(&"--http2") { "HTTP/2" } else { "HTTP/1.1" };
        let call = |more: &[&str]| files.curl(&[way, &["-H", &bearer], more].concat());
        let body = r#"{"id":7,"name":"Rose"}"#;
        assert_eq!(
            call(&["-H", "Content-Type: application/json", "-d", body, &plants]),
            format!(r#"{{"name":"Rose"}} {spoken}"#)
        );
        assert_eq!(call(&[&plants]), format!(r#"[{{"name":"Rose"}}] {spoken}"#));
        assert_eq!(call(&["-X", "DELETE", &format!("{plants}/7")]), format!(" {spoken}"));
        assert!(call(&["-X", "DELETE", &format!("{plants}/7")]).contains("40400"));
        assert!(call(&["-D", "-", &plants]).to_lowercase().contains("strict-transport-security: max-age=31536000\r\n"));
    }
    let without = files.serve(store, &["--no-hsts"]);
    let response = files.curl(&["-D", "-", &format!("https://{}/livez", without.address())]);
    assert!(response.contains("live") && !response.to_lowercase().contains("strict-transport"), "{response}");
    assert!(server.log().contains(r#""address":"https://127.0.0.1:"#), "{}", server.log());
});

// Requests in flight and open connections are not affected by the new certificate.
engine_test!(new_certificate_is_used_without_dropping_a_connection, |store: &Store| {
    let files = TlsFiles::new();
    files.authority.issue("renewed", "EC -pkeyopt ec_paramgen_curve:P-256");
    let server = files.serve(store, &[]);
    let ada = server.client(&store.token("ada", &[]));
    let mut open = files.connect(server.address(), "http/1.1");
    assert!(ask(&mut open, LIVEZ, LIVE).starts_with("HTTP/1.1 200"));
    let mut in_flight = Frames::begin(files.connect(server.address(), "h2"), &[]);
    in_flight.send(HEADERS, END_HEADERS, 1, &head(&ada, "POST", "/plants", &[JSON]));
    in_flight.send(DATA, 0, 1, br#"{"id":1,"#);
    assert!(files.presents(server.address(), "server"));
    files.install_certificate("renewed");
    files.install_key("renewed");
    server.signal("HUP");
    server.wait_for_log(RENEWED);
    assert!(files.presents(server.address(), "renewed"));
    in_flight.send(DATA, END_STREAM, 1, br#""name":"Rose"}"#);
    assert_eq!(in_flight.body(1), r#"{"name":"Rose"}"#);
    assert!(
        ask(&mut open, &ada.bytes("GET", "/plants", &[], None), r#"[{"name":"Rose"}]"#).starts_with("HTTP/1.1 200")
    );
});

/// Tools replace the two files one after the other. A certificate without its key is not used, and one warning is
/// logged.
#[test]
fn changed_certificate_files_are_reloaded() {
    let (store, files) = (store(), TlsFiles::new());
    files.authority.issue("renewed", "EC -pkeyopt ec_paramgen_curve:P-256");
    let server = files.serve(&store, &[]);
    // A file with the same contents is no change.
    files.install_certificate("server");
    files.install_certificate("renewed");
    server.wait_for_log("does not belong to the first certificate");
    assert!(files.presents(server.address(), "server"));
    files.install_key("renewed");
    server.wait_for_log(RENEWED);
    assert!(files.presents(server.address(), "renewed"));
    assert_eq!((server.logged(RENEWED), server.logged(NOT_RENEWED)), (1, 1), "{}", server.log());
}

#[test]
fn invalid_files_leave_the_old_certificate_in_use() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &[]);
    let breaks: [(&dyn Fn(), &str); 3] = [
        (&|| fs::write(&files.certificate, "nonsense").unwrap(), "has no certificate"),
        (&|| fs::write(&files.key, "").unwrap(), "has no private key"),
        (&|| fs::remove_file(&files.certificate).unwrap(), "cannot read"),
    ];
    for (break_it, words) in breaks {
        break_it();
        let before = server.logged(words);
        server.signal("HUP");
        wait_until(words, || server.logged(words) > before);
        assert!(files.presents(server.address(), "server"), "{words}");
        files.install_certificate("server");
        files.install_key("server");
    }
    server.signal("HUP");
    server.wait_for_log("certificate unchanged");
}

#[test]
fn certificate_expiry_is_reported() {
    let (store, files) = (store(), TlsFiles::new());
    // After 2050, ASN.1 has another format for years. Strict decoders reject an object identifier as long as a UUID.
    files.authority.openssl(
        "req -new -x509 -key server.key -subj /CN=renewed -days 20000 -out renewed.crt \
         -addext 2.25.329800735698586629295641978511506172918=ASN1:NULL",
    );
    let server = files.serve(&store, &["--metrics-listen", "0"]);
    let metrics = server.metrics();
    let expiry = "plantstore_tls_certificate_expiry_timestamp_seconds";
    assert_eq!(metrics.value(expiry, &[]), files.end_of("server"));
    files.install_certificate("renewed");
    server.signal("HUP");
    server.wait_for_log(RENEWED);
    assert_eq!(metrics.value(expiry, &[]), files.end_of("renewed"));
    let text = store.serve(&["--metrics-listen", "0"]).metrics().scrape().text;
    assert!(!text.contains(expiry), "without TLS there is no expiry: {text}");
}

/// An operator may send SIGHUP to all services of a machine.
#[test]
fn hangup_is_ignored_without_a_certificate() {
    let store = store();
    let server = store.serve(&[]);
    server.signal("HUP");
    server.wait_for_log("no certificate to reload");
    assert_eq!(server.anonymous().get("/livez").status, 200);
    assert!(server.ended().is_none());
}

/// Runs in a separate network namespace, because the server listens on all addresses.
#[test]
fn plain_http_on_a_non_loopback_address_logs_a_warning() {
    let (store, files) = (store(), TlsFiles::new());
    let everywhere = |tls: &[&str]| {
        let options = [&["serve", "--listen", "0.0.0.0:0", "--no-first-token"], tls].concat();
        Server::start(store.command_through(&["unshare", "--map-root-user", "--net"], &options))
    };
    for (server, warned) in [(everywhere(&[]), true), (everywhere(&files.options()), false), (store.serve(&[]), false)]
    {
        assert_eq!(server.stop().code(), Some(0));
        let log = server.log();
        assert_eq!(log.contains("listening on a non-loopback address without encryption"), warned, "{log}");
    }
}

#[test]
fn usual_key_formats_are_accepted() {
    let (store, files) = (store(), TlsFiles::new());
    let authority = &files.authority;
    authority.openssl("ec -in server.key -out sec1.key");
    authority.issue("rsa", "RSA -pkeyopt rsa_keygen_bits:2048");
    authority.openssl("rsa -in rsa.key -traditional -out pkcs1.key");
    authority.issue("edwards", "ed25519");
    let ways = [
        ("server", "sec1", "EC"),
        ("rsa", "rsa", "PRIVATE"),
        ("rsa", "pkcs1", "RSA"),
        ("edwards", "edwards", "PRIVATE"),
    ];
    for (certificate, key, form) in ways {
        files.install_certificate(certificate);
        files.install_key(key);
        assert!(fs::read_to_string(&files.key).unwrap().contains(&format!("BEGIN {form}")), "{key}");
        let server = files.serve(&store, &[]);
        assert!(files.presents(server.address(), certificate), "{key}");
    }
}

#[test]
fn invalid_certificates_are_rejected_with_one_clear_line() {
    let (store, files) = (store(), TlsFiles::new());
    files.authority.issue("other", "EC -pkeyopt ec_paramgen_curve:P-256");
    files.authority.openssl("ec -in server.key -aes256 -passout pass:secret -out encrypted.key");
    fs::write(files.authority.path("garbled.crt"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
        .unwrap();
    let path = |name: &str| files.authority.path(name).display().to_string();
    let cases = [
        ("server.crt", "missing.key", "cannot read"),
        ("missing.crt", "server.key", "cannot read"),
        ("server.key", "server.key", "has no certificate: it must have the whole chain in PEM"),
        ("garbled.crt", "server.key", "cannot read"),
        ("server.crt", "server.crt", "has no private key: it must have one in PEM"),
        ("server.crt", "encrypted.key", "that is not encrypted"),
        ("server.crt", "other.key", "does not belong to the first certificate in"),
    ];
    for (certificate, key, words) in cases {
        let errors = store.run(&["serve", "--tls-cert", &path(certificate), "--tls-key", &path(key)]).failure(2);
        assert!(errors.starts_with("error: --tls-cert, --tls-key: ") && errors.contains(words), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    for (one, other) in [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")] {
        let errors = store.run(&["serve", one, "file"]).failure(2);
        assert!(errors.contains(other) && errors.lines().count() == 1, "{errors}");
    }
    assert!(!store.file().exists(), "a server that cannot start creates no store");
}

#[test]
fn world_readable_key_logs_a_warning() {
    let (store, files) = (store(), TlsFiles::new());
    for (mode, warned) in [(0o600, false), (0o640, false), (0o644, true)] {
        fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
        let server = files.serve(&store, &[]);
        server.stop();
        assert_eq!(
            server.log().contains("all users of this machine can read the file of --tls-key"),
            warned,
            "{mode:o}"
        );
    }
}

#[test]
fn logged_certificate_is_the_one_in_use() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &[]);
    let output = Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in", &files.certificate])
        .output()
        .expect("openssl runs");
    let printed = output.stdout_text();
    let fingerprint = printed.trim_end().split('=').nth(1).expect("a fingerprint");
    server.wait_for_log(&format!(r#""sha256":"{fingerprint}""#));
}

#[test]
fn slow_handshakes_time_out() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &["--header-timeout", "3s", "--idle-timeout", "60s"]);
    // No bytes, and the first bytes of a handshake.
    for bytes in [b"".as_slice(), b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"] {
        let mut connection = Connection::open(server.address());
        connection.send(bytes);
        assert!(connection.is_closed_by_server(), "{bytes:?}");
    }
    // After the handshake, no bytes, or half of a head.
    let mut response = String::new();
    let silent = files.connect(server.address(), "http/1.1").read_to_string(&mut response);
    assert!(silent.is_ok() && response.is_empty(), "{response}");
    let mut half = files.connect(server.address(), "http/1.1");
    half.write_all(&LIVEZ[..20]).unwrap();
    half.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 408 ") && response.contains("40800"), "{response}");
    let mut frames = Frames::begin(files.connect(server.address(), "h2"), &[]);
    assert_eq!(frames.ending(), Some(crate::support::http2::NO_ERROR));
    assert!(files.presents(server.address(), "server"), "other clients are served");
}

/// Sends input of every kind for which the server closes a connection, with each protocol. Clients that do not read are
/// tested elsewhere.
fn misbehave<S: Read + Write>(ada: &Client, open: impl Fn(&str) -> S) {
    let large = format!("GET / HTTP/1.1\r\nHost: x\r\nX-Filler: {}\r\n\r\n", "x".repeat(20_000));
    for bytes in ["", "GET / HTTP/1.1\r\nHo", "nonsense\r\n\r\n", &large] {
        let mut stream = open("http/1.1");
        stream.write_all(bytes.as_bytes()).unwrap();
        stream.flush().unwrap();
        // Read to the end, with or without an error.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let head = head(ada, "POST", "/plants", &[JSON]);
    let half = &frame(HEADERS, END_HEADERS, 3, &head)[..20];
    for (in_flight, bytes) in [(false, &[][..]), (true, half), (true, &frame(DATA, 0, 0, b"no stream"))] {
        let mut connection = Frames::begin(open("h2"), &[]);
        if in_flight {
            connection.send(HEADERS, END_HEADERS, 1, &head);
            connection.send(PING, 0, 0, b"eightful");
            connection.next_of(PING);
        }
        connection.try_send(bytes).unwrap();
        connection.ending();
    }
}

#[test]
fn aborted_connections_are_counted_the_same_over_tls_and_plain_http() {
    let (store, files) = (store(), TlsFiles::new());
    let token = store.token("ada", &[]);
    let limits = ["--metrics-listen", "0", "--header-timeout", "5s", "--idle-timeout", "60s"];
    for encrypted in [true, false] {
        let server = if encrypted { files.serve(&store, &limits) } else { store.serve(&limits) };
        let (metrics, address) = (server.metrics(), server.address());
        if encrypted {
            misbehave(&server.client(&token), |protocol| files.connect(address, protocol));
        } else {
            misbehave(&server.client(&token), |_| Connection::open(address).stream().try_clone().unwrap());
        }
        let counts = [
            ("idle", 2),
            ("header_timeout", 2),
            ("header_too_large", 1),
            ("malformed", 1),
            ("protocol_violation", 1),
            ("stalled", 0),
            ("tls_handshake", 0),
        ];
        for (reason, count) in counts {
            metrics.wait_for("plantstore_http_connections_aborted_total", &[("reason", reason)], count);
        }
    }
}

#[test]
fn handshakes_that_fail_are_counted() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &["--metrics-listen", "0", "--header-timeout", "5s"]);
    let metrics = server.metrics();
    // Plain HTTP, half a handshake, a malformed handshake, and a client that trusts another authority.
    for bytes in [LIVEZ, b"\x16\x03\x01", b"\x16nonsense"] {
        let mut connection = Connection::open(server.address());
        connection.send(bytes);
        let _ = connection.stream().read_to_end(&mut Vec::new());
    }
    assert!(TlsFiles::new().try_connect(server.address(), "h2").is_err());
    metrics.wait_for("plantstore_http_connections_aborted_total", &[("reason", "tls_handshake")], 4);
    // A connection without a byte is not a failed handshake.
    drop(Connection::open(server.address()));
    assert!(files.presents(server.address(), "server"));
    metrics.wait_for("plantstore_http_connections_accepted_total", &[], 6);
    metrics.wait_for("plantstore_http_connections", &[], 0);
    assert_eq!(metrics.value("plantstore_http_connections_aborted_total", &[]), 4, "no other reason is counted");
}

#[test]
fn client_that_reads_nothing_is_disconnected() {
    let (store, files) = (store(), TlsFiles::new());
    let token = store.token("ada", &[]);
    store.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000)
         INSERT INTO plants (user_id, plant_id, name, version) SELECT 1, n, printf('%01000d', n), 0 FROM numbers",
    );
    let server = files.serve(&store, &["--write-timeout", "300ms", "--metrics-listen", "0"]);
    let ada = server.client(&token);
    let mut unread = files.connect(server.address(), "http/1.1");
    unread.write_all(&ada.bytes("GET", "/plants", &[], None)).unwrap();
    server.wait_for_log(r#""complete":false"#);
    server.metrics().wait_for("plantstore_http_connections_aborted_total", &[("reason", "stalled")], 1);
    let mut received = Vec::new();
    let _ = unread.read_to_end(&mut received);
    assert!(!received.ends_with(b"0\r\n\r\n"), "the list is complete");
}

#[test]
fn plain_http_on_a_tls_port_gets_a_clear_error() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &[]);
    for bytes in [LIVEZ, crate::support::http2::PREFACE, b"nonsense"] {
        let mut connection = Connection::open(server.address());
        let response = connection.ask(bytes);
        assert_eq!(response.error(), 40007);
        assert_eq!(response.message(), "this port is encrypted: write https:// in place of http://");
        assert_eq!(response.header("strict-transport-security"), None);
        assert!(connection.is_closed_by_server());
    }
    let plain = store.serve(&[]);
    assert!(files.try_connect(plain.address(), "h2").is_err(), "a plain HTTP port has no handshakes");
    let response = plain.anonymous().get("/livez");
    assert_eq!((response.status, response.header("strict-transport-security")), (200, None));
}

/// The server cannot send an error response, because that would need a TLS handshake.
#[test]
fn connections_beyond_the_limit_are_closed() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &["--max-connections", "1"]);
    let mut first = files.connect(server.address(), "http/1.1");
    ask(&mut first, LIVEZ, LIVE);
    assert!(Connection::open(server.address()).is_closed_by_server());
    ask(&mut first, LIVEZ, LIVE);
    first.sock.shutdown(Shutdown::Both).unwrap();
    wait_for("a free connection slot", || files.try_connect(server.address(), "http/1.1").ok().map(drop));
}

#[test]
fn unfinished_handshake_does_not_delay_shutdown() {
    let (store, files) = (store(), TlsFiles::new());
    let server = files.serve(&store, &["--shutdown-grace", "100d", "--header-timeout", "100d"]);
    let mut unfinished = Connection::open(server.address());
    unfinished.send(b"\x16\x03\x01");
    // This connection has negotiated HTTP/2, but the client has not sent the preface.
    let _unspoken = files.connect(server.address(), "h2");
    let mut open = files.connect(server.address(), "http/1.1");
    ask(&mut open, LIVEZ, LIVE);
    assert_eq!(server.stop().code(), Some(0), "the server ends before the grace period is over");
    assert!(unfinished.is_closed_by_server());
}

/// On a terminal the banner shows commands that work with this certificate.
#[test]
fn banner_on_a_terminal_shows_the_certificate_to_trust() {
    let (store, files) = (store(), TlsFiles::new());
    let shown = Terminal::serve(&store, &files.options()).screen();
    assert_contains(&shown, "  curl https://127.0.0.1:");
    assert_contains(&shown, &format!("add: --cacert {}", files.certificate));
}
