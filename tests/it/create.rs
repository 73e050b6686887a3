//! `POST /plants`

use serde_json::json;

use crate::support::{Connection, Garden, assert_snapshot, engine_test};

engine_test!(create_returns_the_plant_and_its_location, |Garden { ada, .. }: &Garden| {
    assert_snapshot!(ada.post(r#"{"id": 7, "name": "Monstera", "tag": "indoor"}"#).wire(), @r#"
    200 OK
    content-type: application/json
    location: /plants/7
    content-length: 34

    {"name":"Monstera","tag":"indoor"}
    "#);
    assert_snapshot!(ada.post(r#"{"id": -8, "name": "Fern"}"#).wire(), @r#"
    200 OK
    content-type: application/json
    location: /plants/-8
    content-length: 15

    {"name":"Fern"}
    "#);
});

engine_test!(tag_is_returned_only_if_it_was_given, |Garden { ada, .. }: &Garden| {
    assert_eq!(ada.post(r#"{"id": 1, "name": "a", "tag": null}"#).text(), r#"{"name":"a"}"#);
    assert_eq!(ada.post(r#"{"id": 2, "name": "b", "tag": ""}"#).text(), r#"{"name":"b","tag":""}"#);
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"a"},{"name":"b","tag":""}]"#);
});

engine_test!(every_int64_is_an_id, |Garden { ada, .. }: &Garden| {
    let ids = [i64::MIN, i64::MIN + 1, -9_007_199_254_740_993, -1, 0, 1, 9_007_199_254_740_993, i64::MAX - 1, i64::MAX];
    for id in ids.iter().rev() {
        let response = ada.post(format!(r#"{{"id":{id},"name":"n{id}"}}"#));
        assert_eq!(response.status, 200, "{id}: {}", response.text());
        assert_eq!(response.header("location"), Some(format!("/plants/{id}").as_str()));
    }
    assert_eq!(ada.ids(), ids);
    assert_eq!(ada.post(r#"{"id": -0, "name": "again"}"#).error(), 40900, "minus zero is zero");
    for id in ids {
        assert_eq!(ada.delete(id).status, 204, "{id}");
    }
    assert_eq!(ada.get("/plants").text(), "[]");
});

engine_test!(text_is_stored_exactly_as_sent, |Garden { ada, .. }: &Garden| {
    let long = "ß".repeat(1_000);
    let names = [
        "  not trimmed  ",
        "e\u{301} is not é",
        "é",
        "Ångström",
        "ἄνθος",
        "цветок",
        "زهرة",
        "פרח",
        "फूल",
        "花",
        "꽃",
        "ดอกไม้",
        "🌵🏽‍🌾",
        "<script>alert('x')</script>",
        "\"quoted\" \\ and / slashed",
        "\u{200b}",
        "\u{feff}bom",
        "\u{2028}",
        "\u{ffff}",
        "\u{10ffff}",
        "'; DROP TABLE plants; --",
        "%00",
        "null",
        long.as_str(),
    ];
    for (id, name) in names.iter().enumerate() {
        let response =
            ada.post(json!({ "id": id, "name": name, "tag": name.chars().take(200).collect::<String>() }).to_string());
        assert_eq!(response.status, 200, "{name}: {}", response.text());
        assert_eq!(response.json()["name"], *name);
    }
    let listed = ada.get("/plants").json();
    for (id, name) in names.iter().enumerate() {
        assert_eq!(listed[id]["name"], *name);
        assert_eq!(listed[id]["tag"], name.chars().take(200).collect::<String>());
    }
    let escaped = ada.post(br#"{"\u0069d": 100, "n\u0061me": "\u00e9\ud83c\udf35\/"}"#);
    assert_eq!(escaped.text(), "{\"name\":\"é🌵/\"}");
});

engine_test!(unknown_fields_are_ignored, |Garden { ada, .. }: &Garden| {
    let body = format!(
        r#"{{"id":1,"\ud800":1,"owner":"eve","Name":"x","name":"Rose","deep":{}{},"big":1e999999,"odd":"\ud800"}}"#,
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    assert_eq!(ada.post(body).text(), r#"{"name":"Rose"}"#);
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Rose"}]"#);
});

engine_test!(invalid_body_is_rejected_with_its_error_code, |Garden { ada, .. }: &Garden| {
    let long_name = json!({ "id": 1, "name": "ä".repeat(1_001) }).to_string();
    let long_tag = json!({ "id": 1, "name": "a", "tag": "🌵".repeat(201) }).to_string();
    let both = json!({ "id": 1, "name": format!("{}\u{7}", "x".repeat(1_001)) }).to_string();
    let rejected: &[(&str, i64, &str)] = &[
        // Not one JSON value.
        (" ", 40000, "not JSON"),
        ("{", 40000, "not JSON"),
        ("nope", 40000, "not JSON"),
        (r#"{"id":1,"name":"a"} x"#, 40000, "not JSON"),
        (r#"{"id":1,"name":"a"}{}"#, 40000, "not JSON"),
        (r#"{"id":1,"name":"a",}"#, 40000, "not JSON"),
        ("{'id':1,'name':'a'}", 40000, "not JSON"),
        (r#"{"id":01,"name":"a"}"#, 40000, "not JSON"),
        (r#"{"id":+1,"name":"a"}"#, 40000, "not JSON"),
        (r#"{"id":0x1,"name":"a"}"#, 40000, "not JSON"),
        (r#"{"id":NaN,"name":"a"}"#, 40000, "not JSON"),
        ("\u{feff}{\"id\":1,\"name\":\"a\"}", 40000, "not JSON"),
        ("{\"id\":1,\"name\":\"a\nb\"}", 40000, "not JSON"),
        // Not an object.
        ("[]", 40002, "object"),
        (r#"[{"id":1,"name":"a"}]"#, 40002, "object"),
        (r#"[1,"a","b"]"#, 40002, "object"),
        ("null", 40002, "object"),
        ("1e400", 40002, "object"),
        (r#""text""#, 40002, "object"),
        // Fields missing.
        ("{}", 40001, "`id` is required; `name` is required"),
        (r#"{"id":1}"#, 40001, "`name` is required"),
        (r#"{"name":"a"}"#, 40001, "`id` is required"),
        (r#"{"ID":1,"name":"a"}"#, 40001, "`id` is required"),
        // Fields of another type or out of range.
        (r#"{"id":"1","name":"a"}"#, 40002, "`id`"),
        (r#"{"id":1.0,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":1e0,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":1E2,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":true,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":null,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":[1],"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":9223372036854775808,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":-9223372036854775809,"name":"a"}"#, 40002, "`id`"),
        (r#"{"id":1,"name":null}"#, 40002, "`name`"),
        (r#"{"id":1,"name":5}"#, 40002, "`name`"),
        (r#"{"id":1,"name":["a"]}"#, 40002, "`name`"),
        (r#"{"id":1,"name":"a","tag":5}"#, 40002, "`tag`"),
        (r#"{"id":1,"name":"a","tag":{}}"#, 40002, "`tag`"),
        (
            r#"{"a":1,"a":1,"b":1,"b":1,"c":1,"c":1,"d":1,"d":1,"e":1,"e":1,"f":1,"f":1,"id":1,"id":1,"name":"a","name":"a","tag":"b","tag":"b"}"#,
            40002,
            "`id` is given more than once; `name` is given more than once; `tag` is given more than once; `a` is",
        ),
        // A key given twice, even with the same value, even an unknown one.
        (r#"{"id":1,"id":1,"name":"a"}"#, 40002, "`id` is given more than once"),
        (r#"{"id":1,"name":"a","name":"b"}"#, 40002, "`name` is given more than once"),
        (r#"{"id":1,"name":"a","n\u0061me":"b"}"#, 40002, "`name` is given more than once"),
        (r#"{"id":1,"name":"a","tag":null,"tag":null}"#, 40002, "`tag` is given more than once"),
        (r#"{"id":1,"name":"a","x":1,"x":2}"#, 40002, "`x` is given more than once"),
        // Lengths and characters.
        (r#"{"id":1,"name":""}"#, 40003, "`name` must have 1 to 1000 characters, has 0"),
        (&long_name, 40003, "`name` must have 1 to 1000 characters, has 1001"),
        (&long_tag, 40003, "`tag` must have 0 to 200 characters, has 201"),
        (r#"{"id":1,"name":"a\u0000b"}"#, 40003, "`name` must not hold control characters (found U+0000)"),
        (r#"{"id":1,"name":"a\n"}"#, 40003, "U+000A"),
        ("{\"id\":1,\"name\":\"\u{7f}\"}", 40003, "U+007F"),
        ("{\"id\":1,\"name\":\"\u{85}\"}", 40003, "U+0085"),
        (r#"{"id":1,"name":"a","tag":"\t"}"#, 40003, "`tag` must not hold control characters (found U+0009)"),
        (r#"{"id":1,"name":"\ud800"}"#, 40003, "`name`"),
        (r#"{"id":1,"name":"\udc00\ud800"}"#, 40003, "`name`"),
        (
            &both,
            40003,
            "`name` must have 1 to 1000 characters, has 1002 and must not hold control characters (found U+0007)",
        ),
        // Several faults: the message names all, and the error code is that of the first kind in the table.
        (r#"{"name":5,"tag":"\u0001"}"#, 40001, "`id` is required; `name` must be a string; `tag` must not hold"),
        (r#"{"id":"x","name":""}"#, 40002, "`id` must be an integer such as 42 or -7"),
        (r#"{"id":"x","name":""}"#, 40002, "; `name` must have 1 to 1000 characters"),
        (
            r#"{"id":1,"name":"","tag":7}"#,
            40002,
            "`name` must have 1 to 1000 characters, has 0; `tag` must be a string",
        ),
    ];
    for (body, number, words) in rejected {
        let response = ada.post(body);
        assert_eq!(response.error(), *number, "{body}: {}", response.text());
        assert!(response.message().contains(words), "{body}: {}", response.text());
    }
    for bytes in [&b"\xff\xfe{\x00}"[..], b"{\"id\":1,\"name\":\"\xff\"}", b"{\"id\":1,\"name\":\"a\",\"x\":\"\xc3\"}"]
    {
        assert_eq!(ada.post(bytes).error(), 40000);
    }
    let repeated: Vec<String> = (0..900).flat_map(|key| [key, key]).map(|key| format!(r#""k{key}":1"#)).collect();
    let response = ada.post(format!("{{{}}}", repeated.join(",")));
    assert_eq!(response.error(), 40001);
    assert!(response.body.len() < 500, "the length of the response is bounded: {}", response.text());
    assert_eq!(ada.get("/plants").text(), "[]", "no rejected plant is stored");
});

engine_test!(longest_texts_are_accepted, |Garden { ada, .. }: &Garden| {
    let (name, tag) = ("🌵".repeat(1_000), "🌵".repeat(200));
    let response = ada.post(json!({ "id": 1, "name": name, "tag": tag }).to_string());
    assert_eq!(response.json(), json!({ "name": name, "tag": tag }));
    assert_eq!(ada.get("/plants").json(), json!([{ "name": name, "tag": tag }]));
});

engine_test!(missing_body_is_rejected_with_400_for_every_content_type, |Garden { ada, .. }: &Garden| {
    for headers in [&[][..], &[("Content-Type", "application/json")], &[("Content-Type", "text/plain")]] {
        assert_eq!(ada.call("POST", "/plants", headers, None).error(), 40000);
        assert_eq!(ada.call("POST", "/plants", headers, Some(b"")).error(), 40000);
    }
});

engine_test!(content_type_other_than_json_is_rejected_with_415, |Garden { ada, .. }: &Garden| {
    let mut id = 0;
    let mut post = |headers: &[(&str, &str)]| {
        id += 1;
        let body = format!(r#"{{"id":{id},"name":"a"}}"#);
        ada.call("POST", "/plants", headers, Some(body.as_bytes()))
    };
    for accepted in [
        "application/json",
        "APPLICATION/Json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "application/json ; x=y",
        "application/json;x=y;Charset=\"utf-8\"",
        "application/json; charset=us-ascii",
    ] {
        assert_eq!(post(&[("Content-Type", accepted)]).status, 200, "{accepted}");
    }
    assert_eq!(post(&[("Content-Type", "application/json"), ("Content-Encoding", "identity")]).status, 200);
    for rejected in [
        "",
        "text/plain",
        "application/jsonx",
        "application/ld+json",
        "application/x-www-form-urlencoded",
        "application",
        "json",
        "text/json",
        "application/json, text/plain",
        "application/json; charset=latin1",
        "application/json;charset=\"utf-16\"",
        "application/json; x=y; CHARSET=ISO-8859-1",
        "\u{e9}",
    ] {
        assert_eq!(post(&[("Content-Type", rejected)]).error(), 41500, "{rejected}");
    }
    assert_eq!(post(&[]).error(), 41500);
    assert_eq!(post(&[("Content-Type", "application/json"), ("Content-Type", "text/plain")]).error(), 41500);
    assert_eq!(post(&[("Content-Type", "application/json"), ("Content-Encoding", "gzip")]).error(), 41500);
    assert_snapshot!(post(&[("Content-Type", "text/plain")]).wire(), @r#"
    415 Unsupported Media Type
    content-type: application/json
    cache-control: no-store
    content-length: 120

    {"error":41500,"message":"send the body as `Content-Type: application/json`, in UTF-8 and without a `Content-Encoding`"}
    "#);
});

engine_test!(body_larger_than_16_kib_is_rejected_with_413, |Garden { ada, .. }: &Garden| {
    let body = |id: i64, length: usize| {
        let start = format!(r#"{{"id":{id},"name":"a","filler":""#);
        let filler = "x".repeat(length - start.len() - 2);
        let body = format!(r#"{start}{filler}"}}"#);
        assert_eq!(body.len(), length);
        body
    };
    let mut connection = ada.connect();
    let json = ("Content-Type", "application/json");
    for (id, length, status) in
        [(1, 16_383, 200), (2, 16_384, 200), (3, 16_385, 413), (4, 1_000_000, 413), (5, 100, 200)]
    {
        let response = connection.ask(ada.bytes("POST", "/plants", &[json], Some(body(id, length).as_bytes())));
        assert_eq!(response.status, status, "{length} bytes on the same connection: {}", response.text());
    }
    let chunked = |length: usize| {
        let body = body(9, length);
        let mut bytes = ada.bytes("POST", "/plants", &[json, ("Transfer-Encoding", "chunked")], None);
        for chunk in body.as_bytes().chunks(5_000) {
            bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            bytes.extend(chunk);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"0\r\n\r\n");
        bytes
    };
    assert_eq!(connection.ask(chunked(16_385)).error(), 41300);
    assert_eq!(connection.ask(chunked(16_384)).status, 200, "the connection stays usable");
    assert_eq!(ada.ids(), [1, 2, 5, 9]);
});

engine_test!(oversized_body_is_rejected_before_it_is_sent, |Garden { ada, .. }: &Garden| {
    let mut connection = ada.connect();
    let headers = [("Content-Type", "application/json"), ("Content-Length", "5368709120"), ("Expect", "100-continue")];
    let response = connection.ask(ada.bytes("POST", "/plants", &headers, None));
    assert_snapshot!(response.wire(), @r#"
    413 Payload Too Large
    content-type: application/json
    cache-control: no-store
    connection: close
    content-length: 83

    {"error":41300,"message":"the body is larger than 16384 bytes: send a smaller one"}
    "#);
    assert!(connection.is_closed_by_server());
    let mut asking = ada.connect();
    let headers = [("Content-Type", "application/json"), ("Content-Length", "16385"), ("Expect", "100-continue")];
    asking.send(ada.bytes("POST", "/plants", &headers, None));
    assert_eq!(asking.read_response(false).error(), 41300, "100-continue is not sent for a body that is too large");
    let mut fitting = ada.connect();
    let headers = [("Content-Type", "application/json"), ("Content-Length", "16384"), ("Expect", "100-continue")];
    assert_eq!(fitting.ask(ada.bytes("POST", "/plants", &headers, None)).status, 100);
    assert_eq!(fitting.ask(format!("{:16384}", r#"{"id":1,"name":"a"}"#)).status, 200);
});

engine_test!(client_that_continues_to_send_gets_the_413, |Garden { ada, .. }: &Garden| {
    let mut connection = ada.connect();
    let headers = [("Content-Type", "application/json"), ("Content-Length", "3000000")];
    connection.send(ada.bytes("POST", "/plants", &headers, None));
    // The server may close the connection while the client sends. The response must arrive all the same.
    let _ = connection.try_send(vec![b' '; 900_000]);
    assert_eq!(connection.read_response(false).error(), 41300);
});

engine_test!(duplicate_id_is_rejected_with_409_and_the_plant_unchanged, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "first");
    let response = ada.post(r#"{"id":1,"name":"second","tag":"t"}"#);
    assert_snapshot!(response.wire(), @r#"
    409 Conflict
    content-type: application/json
    cache-control: no-store
    content-length: 103

    {"error":40900,"message":"a plant with the id 1 exists already: choose another id, or delete it first"}
    "#);
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"first"}]"#);
    assert_eq!(ada.delete(1).status, 204);
    assert_eq!(ada.post(r#"{"id":1,"name":"second"}"#).status, 200, "a deleted id is free again");
});

engine_test!(exactly_one_of_many_concurrent_creates_of_one_id_succeeds, |Garden { ada, .. }: &Garden| {
    let statuses: Vec<(u16, u16)> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..16)
            .map(|racer| {
                scope.spawn(move || {
                    let shared = ada.post(format!(r#"{{"id":0,"name":"racer {racer}"}}"#)).status;
                    let own = ada.post(format!(r#"{{"id":{},"name":"own"}}"#, racer + 1)).status;
                    (shared, own)
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().expect("a racer")).collect()
    });
    assert_eq!(statuses.iter().filter(|(shared, _)| *shared == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|(shared, _)| *shared == 409).count(), 15, "{statuses:?}");
    assert!(statuses.iter().all(|(_, own)| *own == 200), "{statuses:?}");
    assert_eq!(ada.ids(), (0..=16).collect::<Vec<_>>());
});

engine_test!(response_waits_for_the_body, |Garden { server, ada, .. }: &Garden| {
    let bytes =
        ada.bytes("POST", "/plants", &[("Content-Type", "application/json")], Some(br#"{"id":1,"name":"slow"}"#));
    let mut connection = Connection::open(server.address());
    for byte in bytes {
        connection.send([byte]);
    }
    assert_eq!(connection.read_response(false).text(), r#"{"name":"slow"}"#);
});
