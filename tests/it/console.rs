//! Files and headers of the web console. Its behaviour is tested in `requires_tools/browser.rs`.

use insta::assert_snapshot;

use crate::support::http2::Http2;
use crate::support::{CommandOutput, Garden, Server, Service, Store, assert_contains, sqlite_test, wait_until};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'; connect-src 'self'";

/// The addresses of the page and of the files that it names.
fn addresses(server: &Server) -> Vec<String> {
    let page = server.anonymous().get("/").text().to_owned();
    ["/"].into_iter().chain(page.split('"').filter(|word| word.starts_with("/console/"))).map(str::to_owned).collect()
}

sqlite_test!(console_page_is_public_and_has_a_strict_policy, |Service { server, .. }: &Service| {
    let mut page = server.anonymous().get("/");
    assert!(page.text().starts_with("<!doctype html>"));
    page.body.clear();
    page.headers.retain(|(name, _)| name != "content-length");
    assert_snapshot!(page.wire(), @r"
    200 OK
    content-type: text/html; charset=utf-8
    etag: (a tag)
    cache-control: no-cache
    vary: Accept-Encoding
    content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'; connect-src 'self'
    referrer-policy: no-referrer
    permissions-policy: camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()
    cross-origin-opener-policy: same-origin
    cross-origin-resource-policy: same-origin
    ");
});

sqlite_test!(console_learns_the_issuer_and_may_connect_to_it_and_to_no_other, |store: &Store| {
    let issuer = "http://127.0.0.1:1/garden";
    let of_issuer = ["--oidc-issuer", issuer, "--oidc-audience"];
    let serve = |more: &[&str]| store.serve(&[&of_issuer, more].concat());
    let settings = |server: &Server| server.anonymous().get("/console/app.js").text()[..300].to_owned();

    let server = serve(&["plants", "--oidc-client-id", "a \"client\""]);
    let expected = format!(r#"{{"clientId":"a \"client\"","issuer":"{issuer}","name":null,"resource":null}}"#);
    assert!(settings(&server).contains(&format!("const settings = {expected};")), "{}", settings(&server));
    let policy = format!("{POLICY} http://127.0.0.1:1");
    for path in ["/", "/console/app.js"] {
        assert_eq!(server.anonymous().get(path).header("content-security-policy"), Some(&*policy), "{path}");
    }
    assert!(!server.anonymous().get("/docs").header("content-security-policy").is_some_and(|it| it.contains(":1")));
    let server = serve(&["https://plants.example", "--oidc-client-id", "console", "--oidc-name", "Garden login"]);
    assert!(settings(&server).contains(r#""name":"Garden login""#), "{}", settings(&server));
    assert!(settings(&server).contains(r#""resource":"https://plants.example""#), "{}", settings(&server));

    for server in [serve(&["plants"]), store.serve(&[])] {
        assert!(settings(&server).contains("const settings = null;"), "{}", settings(&server));
        assert_eq!(server.anonymous().get("/").header("content-security-policy"), Some(POLICY));
    }
});

sqlite_test!(client_id_without_an_issuer_is_a_usage_error, |store: &Store| {
    assert_contains(store.run(&["serve", "--oidc-client-id", "console"]).failure(2), "--oidc-issuer");
});

sqlite_test!(every_file_that_the_page_needs_is_served, |Service { server, .. }: &Service| {
    let addresses = addresses(server);
    assert_eq!(addresses, ["/", "/console/icon.svg", "/console/style.css", "/console/theme.js", "/console/app.js"]);
    let anonymous = server.anonymous();
    for address in &addresses {
        let response = anonymous.get(address);
        assert_eq!(response.status, 200, "{address}");
        let media_type = match address.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(response.header("content-type"), Some(media_type), "{address}");
        assert_eq!(response.header("content-security-policy"), Some(POLICY), "{address}");

        let length = response.body.len().to_string();
        let head = anonymous.call("HEAD", address, &[], None);
        assert_eq!((head.status, head.header("content-length")), (200, Some(length.as_str())), "{address}");
        let tag = response.header("etag").expect("a tag");
        let again = anonymous.call("GET", address, &[("If-None-Match", tag)], None);
        assert_eq!((again.status, again.body.len(), again.header("etag")), (304, 0, Some(tag)), "{address}");
        assert_eq!(anonymous.call("GET", address, &[("If-None-Match", "\"other\"")], None).status, 200);
    }
});

sqlite_test!(unknown_console_paths_are_rejected_with_404, |Garden { server, ada, .. }: &Garden| {
    for address in ["/console", "/console/", "/console/nothing.js", "/console/../src/http.rs", "/index.html"] {
        assert_eq!(server.anonymous().get(address).error(), 40100, "{address}");
        assert_eq!(ada.get(address).error(), 40401, "{address}");
    }
    for address in ["/", "/console/app.js"] {
        let rejected = ada.call("POST", address, &[], None);
        assert_eq!((rejected.error(), rejected.header("allow")), (40500, Some("GET,HEAD")), "{address}");
        assert_eq!(server.anonymous().call("POST", address, &[], None).error(), 40100, "{address}");
    }
    wait_until("the lines of the log", || {
        let log = server.log();
        [r#""route":"/","#, r#""route":"/console/{file}""#].iter().all(|route| log.contains(route))
    });
});

sqlite_test!(disabled_console_paths_are_like_any_other, |store: &Store| {
    let server = store.serve(&["--no-console"]);
    let ada = server.client(&store.token("ada", &[]));
    for address in ["/", "/console/app.js", "/console/style.css"] {
        assert_eq!(server.anonymous().get(address).error(), 40100, "{address}");
        let [missing, other] = [ada.get(address), ada.get("/nothing")];
        assert_eq!(missing.wire(), other.wire(), "{address}");
        assert_eq!(ada.call("POST", address, &[], None).error(), 40401, "{address}");
    }
    drop(server);
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("PLANTSTORE_NO_CONSOLE", "1");
    let server = Server::start(command);
    assert_eq!(server.anonymous().get("/").error(), 40100);
    let reported =
        store.command(&["serve", "--listen", "0"]).env("PLANTSTORE_NO_CONSOLE", "maybe").output().unwrap().failure(2);
    assert_eq!(reported, "error: invalid value 'maybe' for PLANTSTORE_NO_CONSOLE: write true or false (see --help)\n");
});

sqlite_test!(favicon_is_served_with_the_console, |Service { store, server }: &Service| {
    let anonymous = server.anonymous();
    let icon = anonymous.get("/favicon.ico");
    assert_eq!((icon.status, icon.header("content-type")), (200, Some("image/x-icon")));
    assert_eq!(icon.body[..6], [0, 0, 1, 0, 1, 0], "one icon");
    let tag = icon.header("etag").expect("a tag");
    assert_eq!(anonymous.call("GET", "/favicon.ico", &[("If-None-Match", tag)], None).status, 304);
    let without = store.serve(&["--no-console"]);
    assert_eq!(without.anonymous().get("/favicon.ico").error(), 40100);
});

/// Addresses that are no public page: some are the API's, some do not exist.
const NO_PAGES: [&str; 10] = [
    "/nothing",
    "/plants",
    "/plants?limit=1",
    "/plants/1",
    "/plants/x/y",
    "/tokens",
    "/console/nothing.js",
    "/docs/nothing",
    "/index.html",
    "/metrics",
];
/// `Accept` header of a browser that opens an address.
const NAVIGATION: (&str, &str) =
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8");

sqlite_test!(browser_without_token_gets_the_same_404_page_everywhere_else, |Service { server, .. }: &Service| {
    let anonymous = server.anonymous();
    let page = anonymous.call("GET", NO_PAGES[0], &[NAVIGATION], None);
    assert_eq!((page.status, page.header("content-type")), (404, Some("text/html; charset=utf-8")));
    assert!(page.text().starts_with("<!doctype html>") && page.text().contains("href=\"/\""), "{}", page.text());
    assert!(page.body.len() < 2_000, "a small page");
    assert_eq!(page.header("content-security-policy"), Some(POLICY));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("www-authenticate"), None);
    for path in NO_PAGES {
        for accept in [NAVIGATION, ("Accept", "text/html"), ("accept", "TEXT/HTML;q=0.9, */*")] {
            assert_eq!(anonymous.call("GET", path, &[accept], None).wire(), page.wire(), "{path}");
        }
        let head = anonymous.call("HEAD", path, &[NAVIGATION], None);
        let length = page.body.len().to_string();
        assert_eq!((head.status, head.header("content-length")), (404, Some(length.as_str())), "{path}");
        let over_http2 = Http2::open(&anonymous).call("GET", path, &[NAVIGATION], None);
        assert_eq!((over_http2.status, over_http2.text()), (404, page.text()), "{path}");
    }
    for path in ["/", "/docs", "/livez", "/openapi.json"] {
        assert_eq!(anonymous.call("GET", path, &[NAVIGATION], None).status, 200, "{path}");
    }
});

sqlite_test!(other_clients_get_json_errors_and_no_404_page, |Service { store, server }: &Service| {
    let (anonymous, ada) = (server.anonymous(), server.client(&store.token("ada", &[])));
    for path in NO_PAGES {
        for accept in ["*/*", "text/*", "application/json", "text/html;q=0, application/json", "application/xhtml+xml"]
        {
            assert_eq!(anonymous.call("GET", path, &[("Accept", accept)], None).error(), 40100, "{path} {accept}");
        }
        assert_eq!(anonymous.call("POST", path, &[NAVIGATION], None).error(), 40100, "{path}");
        let basic = [NAVIGATION, ("Authorization", "Basic YTpi")];
        assert_eq!(anonymous.call("GET", path, &basic, None).error(), 40100, "{path}");
        assert_eq!(server.client("pst_invalid").call("GET", path, &[NAVIGATION], None).error(), 40101, "{path}");
    }
    assert_eq!(ada.call("GET", "/nothing", &[NAVIGATION], None).error(), 40401);
    assert_eq!(ada.call("GET", "/plants", &[NAVIGATION], None).text(), "[]");
    let without = store.serve(&["--no-console"]);
    for path in ["/", "/nothing", "/plants"] {
        assert_eq!(without.anonymous().call("GET", path, &[NAVIGATION], None).error(), 40100, "{path}");
    }
});
