//! Test issuer of OpenID Connect: real keys, real signatures, over HTTP and over TLS.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use super::stub_server::{Duplex, StubServer};
use super::tools::external;
use super::{CommandOutput, wait_until};

/// Audience of its tokens.
pub(crate) const AUDIENCE: &str = "plants";
/// Paths of the discovery document and of the keys.
pub(crate) const DISCOVERY: &str = "/.well-known/openid-configuration";
pub(crate) const KEYS: &str = "/keys";

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set").as_secs_f64()
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Runs `openssl` and returns its standard output.
fn openssl(arguments: &str, directory: &Path, input: &[u8]) -> Vec<u8> {
    let mut child = external("openssl")
        .args(arguments.split(' '))
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl runs");
    // The command may not read its input.
    let _ = child.stdin.take().expect("standard input is piped").write_all(input);
    let output = child.wait_with_output().expect("openssl ends");
    assert!(output.status.success(), "openssl {arguments}: {}", output.stderr_text());
    output.stdout
}

/// A key that signs tokens.
pub(crate) struct SigningKey {
    pub(crate) id: String,
    /// The public half, as the issuer publishes it.
    pub(crate) jwk: Value,
    pair: Pair,
}

enum Pair {
    /// A file for `openssl`, because `ring` does not generate RSA keys.
    Rsa(NamedTempFile),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    pub(crate) fn rsa(id: &str) -> Self {
        Self::rsa_of(id, 2_048)
    }

    pub(crate) fn rsa_of(id: &str, bits: usize) -> Self {
        let mut file = NamedTempFile::new().expect("a file");
        let here = Path::new(".");
        let made = openssl(&format!("genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:{bits}"), here, b"");
        file.write_all(&made).expect("the key written");
        let modulus = openssl(&format!("rsa -modulus -noout -in {}", file.path().display()), here, b"");
        let modulus = String::from_utf8(modulus).expect("text");
        let digits = modulus.trim().strip_prefix("Modulus=").expect("a modulus");
        let modulus: Vec<u8> =
            (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect();
        let jwk = json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": id, "n": encode(modulus), "e": "AQAB" });
        Self { id: id.to_owned(), jwk, pair: Pair::Rsa(file) }
    }

    pub(crate) fn p256(id: &str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).expect("a key");
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let jwk = json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": id, "x": encode(x), "y": encode(y) });
        Self { id: id.to_owned(), jwk, pair: Pair::P256(pair) }
    }

    pub(crate) fn ed25519(id: &str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect("a key");
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": id, "x": encode(pair.public_key().as_ref()) });
        Self { id: id.to_owned(), jwk, pair: Pair::Ed25519(pair) }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    pub(crate) fn header(&self) -> Value {
        json!({ "alg": self.algorithm(), "kid": self.id, "typ": "JWT" })
    }

    /// Signs a valid token.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&self.header(), claims)
    }

    /// Signs a token with another header.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.token_of(&header.to_string(), &claims.to_string())
    }

    /// Signs a token whose header and claims are these texts, which need not be JSON.
    pub(crate) fn token_of(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.pair {
            Pair::Rsa(file) => {
                openssl(&format!("dgst -sha256 -sign {}", file.path().display()), Path::new("."), message)
            }
            Pair::P256(pair) => pair.sign(&SystemRandom::new(), message).expect("a signature").as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns the public key in all encodings that a server could mistake for a shared secret.
    pub(crate) fn public_forms(&self) -> Vec<Vec<u8>> {
        let mut forms = vec![self.jwk.to_string().into_bytes()];
        for number in ["n", "x", "y"] {
            if let Some(text) = self.jwk[number].as_str() {
                forms.extend([text.as_bytes().to_vec(), URL_SAFE_NO_PAD.decode(text).expect("base64url")]);
            }
        }
        if let Pair::Rsa(file) = &self.pair {
            let file = file.path().display();
            for form in [
                "pkey -pubout",
                "pkey -pubout -outform DER",
                "rsa -RSAPublicKey_out",
                "rsa -RSAPublicKey_out -outform DER",
            ] {
                let mut form = openssl(&format!("{form} -in {file}"), Path::new("."), b"");
                forms.push(form.clone());
                while form.pop_if(|last| *last == b'\n').is_some() {}
                forms.push(form);
            }
        }
        forms
    }
}

/// A certificate authority that has issued a certificate for 127.0.0.1.
pub(crate) struct Authority {
    directory: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::with_subject("IP:127.0.0.1")
    }

    /// Creates an authority with a certificate for this host.
    pub(crate) fn for_host(host: &str) -> Self {
        Self::with_subject(&format!("DNS:{host}"))
    }

    fn with_subject(subject: &str) -> Self {
        let authority = Self { directory: tempfile::tempdir().expect("a directory") };
        std::fs::write(authority.path("extensions"), format!("subjectAltName={subject}")).expect("a file");
        authority.openssl("genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out root.key");
        authority.openssl("req -new -x509 -key root.key -subj /CN=authority -days 2 -out root.crt");
        authority.issue("server", "EC -pkeyopt ec_paramgen_curve:P-256");
        authority
    }

    pub(crate) fn openssl(&self, arguments: &str) {
        openssl(arguments, self.directory.path(), b"");
    }

    /// Creates a key (`NAME.key`) and a certificate for it (`NAME.crt`).
    pub(crate) fn issue(&self, name: &str, algorithm: &str) {
        self.openssl(&format!("genpkey -quiet -algorithm {algorithm} -out {name}.key"));
        self.openssl(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA root.crt -CAkey root.key -CAcreateserial -days 2 -extfile extensions \
             -out {name}.crt"
        ));
    }

    /// Returns the path of a file, such as `server.key`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the path of the authority's own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.path("root.crt")
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let certificate = CertificateDer::from_pem_file(self.path("server.crt")).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = versions.expect("versions").with_no_client_auth().with_single_cert(vec![certificate], key);
        Arc::new(config.expect("a certificate and its key"))
    }
}

/// An issuer with its own port, which can stop and restart on it.
pub(crate) struct Issuer {
    shared: Arc<IssuerState>,
    pub(crate) server: StubServer,
}

struct IssuerState {
    /// Its URL, which is also the `iss` claim of its tokens.
    url: OnceLock<String>,
    keys: Mutex<Vec<Value>>,
    fetches: AtomicUsize,
    /// Complete responses that replace the regular ones, by path.
    overrides: Mutex<HashMap<&'static str, Vec<u8>>>,
}

impl Issuer {
    pub(crate) fn start(keys: &[&SigningKey]) -> Self {
        Self::start_with(None, "127.0.0.1", "", keys)
    }

    pub(crate) fn start_with_tls(authority: &Authority, keys: &[&SigningKey]) -> Self {
        Self::start_as("127.0.0.1", authority, keys)
    }

    /// Starts an issuer whose URL has this host.
    pub(crate) fn start_as(host: &str, authority: &Authority, keys: &[&SigningKey]) -> Self {
        Self::start_with(Some(authority.server()), host, "", keys)
    }

    /// Starts an issuer whose URL has a path.
    pub(crate) fn start_below(path: &str, keys: &[&SigningKey]) -> Self {
        Self::start_with(None, "127.0.0.1", path, keys)
    }

    fn start_with(tls: Option<Arc<ServerConfig>>, host: &str, path: &str, keys: &[&SigningKey]) -> Self {
        let shared = Arc::new(IssuerState {
            url: OnceLock::new(),
            keys: Mutex::new(keys.iter().map(|key| key.jwk.clone()).collect()),
            fetches: AtomicUsize::new(0),
            overrides: Mutex::default(),
        });
        let server = StubServer::start(tls, |own| {
            shared.url.set(format!("{}{path}", own.replace("127.0.0.1", host))).expect("set once");
            let shared = Arc::clone(&shared);
            move |stream: &mut dyn Duplex| shared.serve(stream)
        });
        Self { shared, server }
    }

    pub(crate) fn url(&self) -> &str {
        self.shared.url()
    }

    /// Options that make a server accept its tokens.
    pub(crate) fn options(&self) -> [&str; 4] {
        ["--oidc-issuer", self.url(), "--oidc-audience", AUDIENCE]
    }

    /// Replaces the published keys.
    pub(crate) fn publish(&self, keys: &[&SigningKey]) {
        self.publish_jwks(keys.iter().map(|key| key.jwk.clone()).collect());
    }

    pub(crate) fn publish_jwks(&self, keys: Vec<Value>) {
        *self.shared.keys.lock().expect("the keys") = keys;
    }

    /// Returns the number of fetches of its keys.
    pub(crate) fn fetches(&self) -> usize {
        self.shared.fetches.load(Ordering::SeqCst)
    }

    /// Waits until the response to another fetch, begun after this call, is sent.
    #[track_caller]
    pub(crate) fn wait_for_fetch(&self) {
        let before = self.fetches();
        wait_until("another fetch of the keys", || self.fetches() > before);
    }

    /// Sends these bytes in response to requests for this path; the regular response again for `None`.
    pub(crate) fn respond_with(&self, path: &'static str, response: Option<Vec<u8>>) {
        let mut responses = self.shared.overrides.lock().expect("the responses");
        match response {
            Some(response) => responses.insert(path, response),
            None => responses.remove(path),
        };
    }

    /// Claims of a valid token for this user.
    pub(crate) fn claims(&self, user: &str) -> Value {
        json!({
            "iss": self.url(), "aud": AUDIENCE, "sub": user, "iat": now().floor(), "exp": now().floor() + 600.0,
            "scope": "openid plants:read plants:write plants:delete",
        })
    }
}

/// Returns a complete 200 response with this body.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).into_bytes()
}

impl IssuerState {
    fn url(&self) -> &str {
        self.url.get().expect("the issuer has started")
    }

    fn serve(&self, mut stream: &mut dyn Duplex) -> std::io::Result<()> {
        let mut lines = BufReader::new(&mut stream).lines();
        let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let path = request.split(' ').nth(1).unwrap_or_default();
        stream.write_all(&self.response_to(path))?;
        stream.flush()
    }

    fn response_to(&self, path: &str) -> Vec<u8> {
        if path == KEYS {
            self.fetches.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(response) = self.overrides.lock().expect("the responses").get(path) {
            return response.clone();
        }
        let host = self.url().splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let below = self.url()[host.len()..].trim_end_matches('/');
        if path == format!("{below}{DISCOVERY}") {
            return ok(&json!({ "issuer": self.url(), "jwks_uri": format!("{host}{KEYS}") }).to_string());
        }
        if path == KEYS {
            let keys = self.keys.lock().expect("the keys").clone();
            return ok(&json!({ "keys": keys }).to_string());
        }
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
    }
}
