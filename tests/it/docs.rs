//! The interactive page of the API documentation.

use crate::support::{BrowserScript, Service, Store, assert_snapshot, engine_test, engine_tool_test};

engine_test!(page_and_its_files_are_served_by_the_service, |Service { store, server }: &Service| {
    let anonymous = server.anonymous();
    let page = anonymous.get("/docs");
    assert_snapshot!(page.wire().split("\n\n").next().unwrap(), @r"
    200 OK
    content-type: text/html; charset=utf-8
    etag: (a tag)
    cache-control: no-cache
    vary: Accept-Encoding
    content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'
    referrer-policy: no-referrer
    permissions-policy: camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()
    cross-origin-opener-policy: same-origin
    cross-origin-resource-policy: same-origin
    content-length: 1081
    ");
    assert_eq!(anonymous.get("/docs/").body, page.body);
    let references: Vec<&str> = page
        .text()
        .split([' ', '>'])
        .filter_map(|word| word.strip_prefix("href=").or(word.strip_prefix("src=")))
        .collect();
    assert!(references.len() >= 5, "{references:?}");
    for reference in references {
        let path = reference.trim_matches('"');
        let file = anonymous.get(path);
        assert_eq!(file.status, 200, "{path}");
        assert!(!file.body.is_empty(), "{path}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"), "{path}");
        let tag = file.header("etag").expect("a tag");
        assert_eq!(anonymous.call("GET", path, &[("If-None-Match", tag)], None).status, 304, "{path}");
        assert!(anonymous.call("HEAD", path, &[], None).body.is_empty(), "{path}");
    }
    assert_eq!(anonymous.get("/docs/nothing").error(), 40100, "an unknown path needs a token");
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(ada.get("/docs/nothing").error(), 40401);
    assert_eq!(ada.call("POST", "/docs", &[], None).error(), 40500);
    assert!(page.text().contains(r#"<a href="/">"#), "a link to the console");
    let without = store.serve(&["--no-console"]);
    // No link to a console that is turned off.
    assert!(!without.anonymous().get("/docs").text().contains(r#"href="/""#));
});

engine_tool_test!(all_three_operations_can_be_tried_in_a_browser, requires_chromium, |store: &Store| {
    let server = store.serve(&[]);
    let name = format!("docs-{:?}", store.engine).to_lowercase();
    BrowserScript::new("docs", &name, &server, &store.token("ada", &[])).run();
});
