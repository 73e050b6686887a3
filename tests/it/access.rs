//! Access of every kind of caller to the plants of another user, with every set of scopes: generated, and compared with the rule.

use crate::support::{Client, JSON, Response, Service, engine_test};

/// Relation of a caller to the owner of the plants.
const RELATIONS: [(&str, Option<&str>); 6] = [
    ("stranger", None),
    ("offered-reader", None),
    ("offered-editor", None),
    ("reader", Some("reader")),
    ("editor", Some("editor")),
    ("ada", Some("owner")),
];
const SCOPES: [&str; 8] = [
    "plants:read",
    "plants:write",
    "plants:delete",
    "plants:read,plants:write",
    "plants:write,plants:delete",
    "plants:read,plants:write,plants:delete",
    "tokens:manage,shares:manage",
    "plants:read,plants:write,plants:delete,tokens:manage,shares:manage",
];
/// Id of a plant of the owner, and an id of none.
const PRESENT: i64 = 1;
const ABSENT: i64 = 2;

/// Operations on a collection: the scope that they need, and the status or error code for a present and an absent plant.
const OPERATIONS: [(&str, &str, i64, i64); 5] = [
    ("list", "plants:read", 200, 200),
    ("GET", "plants:read", 200, 40400),
    ("POST", "plants:write", 40900, 200),
    ("PUT", "plants:write", 200, 40400),
    ("DELETE", "plants:delete", 204, 40400),
];

fn call(client: &Client, operation: &str, owner: &str, id: i64) -> Response {
    let body = format!(r#"{{"id":{id},"name":"changed"}}"#);
    let path = format!("/plants/{id}?owner={owner}");
    match operation {
        "list" => client.get(&format!("/plants?owner={owner}")),
        "POST" => client.call("POST", &format!("/plants?owner={owner}"), &[JSON], Some(body.as_bytes())),
        "PUT" => client.call("PUT", &path, &[JSON], Some(body.as_bytes())),
        method => client.call(method, &path, &[], None),
    }
}

engine_test!(every_caller_gets_what_role_and_scopes_allow, |Service { store, server }: &Service| {
    let ada = server.client(&store.token("ada", &["--scope", SCOPES[7]]));
    ada.plant(PRESENT, "a name that only readers see");
    for (user, role) in RELATIONS {
        store.token(user, &[]);
        if let Some(role) = role.filter(|role| *role != "owner") {
            store.share("ada", user, role);
        }
        if let Some(role) = user.strip_prefix("offered-") {
            let body = format!(r#"{{"role":"{role}"}}"#);
            assert_eq!(ada.call("PUT", &format!("/shares/{user}"), &[JSON], Some(body.as_bytes())).status, 204);
        }
    }
    for (user, role) in RELATIONS {
        for scopes in SCOPES {
            let caller = server.client(&store.token(user, &["--scope", scopes]));
            for (operation, needed, if_present, if_absent) in OPERATIONS {
                for (id, success) in [(PRESENT, if_present), (ABSENT, if_absent)] {
                    let about = format!("{user} with {scopes}: {operation} {id}");
                    let changes = !["list", "GET"].contains(&operation);
                    let expected = match role {
                        _ if !scopes.split(',').any(|scope| scope == needed) => 40300,
                        None => 40400,
                        Some("reader") if changes => 40300,
                        Some(_) => success,
                    };
                    let response = call(&caller, operation, "ada", id);
                    let found = if response.status < 300 { response.status.into() } else { response.error() };
                    assert_eq!(found, expected, "{about}: {}", response.text());
                    if expected == 40300 || role.is_none() {
                        // The response shows neither the plant nor its owner.
                        let missing = call(&caller, operation, "abe", id);
                        let is_rejected_for_scope = !scopes.split(',').any(|scope| scope == needed);
                        if role.is_none() || is_rejected_for_scope {
                            assert_eq!(response.wire(), missing.wire(), "{about}");
                        }
                        assert!(!response.text().contains("only readers"), "{about}");
                    } else if changes && response.status < 300 {
                        ada.delete(ABSENT);
                        ada.post(format!(r#"{{"id":{PRESENT},"name":"a name that only readers see"}}"#));
                    }
                }
            }
            if role.is_none() && scopes.contains("plants:read") {
                assert_eq!(caller.get("/plants").text(), "[]", "{user}: an offer adds nothing to a list");
            }
        }
    }
    assert_eq!(ada.ids(), [PRESENT]);
});
