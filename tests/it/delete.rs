//! `DELETE /plants/{id}`

use crate::support::{Garden, assert_snapshot, engine_test};

engine_test!(delete_returns_204_without_a_body, |Garden { ada, .. }: &Garden| {
    ada.plant(5, "Rose");
    ada.plant(6, "Fern");
    assert_snapshot!(ada.delete(5).wire(), @r"
    204 No Content
    ");
    assert_eq!(ada.ids(), [6]);
    assert_snapshot!(ada.delete(5).wire(), @r#"
    404 Not Found
    content-type: application/json
    cache-control: no-store
    content-length: 106

    {"error":40400,"message":"there is no plant with this id: list yours with `?include=id` to see their ids"}
    "#);
});

engine_test!(plant_of_another_user_gets_the_same_404_as_a_missing_one, |Garden { store, server, ada }: &Garden| {
    let bob = server.client(&store.token("bob", &[]));
    ada.plant(5, "Rose");
    assert_eq!(bob.delete(5).wire(), bob.delete(123_456).wire());
    assert_eq!(ada.ids(), [5]);
});

engine_test!(id_in_the_path_that_is_no_integer_is_rejected_with_400, |Garden { ada, .. }: &Garden| {
    for wrong in [
        "abc",
        "1.0",
        "1e3",
        "+1",
        "01",
        "-",
        "--1",
        "0x1",
        "%20",
        "1%20",
        "%2B1",
        "%ff",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999999",
        "\u{661}",
        "1;v=2",
        "1,2",
        "null",
        "-01",
        "%00",
    ] {
        let response = ada.delete(wrong);
        assert_eq!(response.error(), 40005, "{wrong}: {}", response.text());
    }
    assert_snapshot!(ada.delete("abc").wire(), @r#"
    400 Bad Request
    content-type: application/json
    cache-control: no-store
    content-length: 127

    {"error":40005,"message":"the id in the path must be an integer such as 42 or -7, without leading zeros, fraction or exponent"}
    "#);
    for fine in ["0", "-1", "1", "%31", "9223372036854775807", "-9223372036854775808", "1?owner=x&unknown=1"] {
        assert_eq!(ada.delete(fine).error(), 40400, "{fine}");
    }
});

engine_test!(body_of_a_delete_is_ignored, |Garden { ada, .. }: &Garden| {
    for (id, length) in [(1, 5), (2, 100_000), (3, 3_000_000)] {
        ada.plant(id, "Rose");
        let mut connection = ada.connect();
        connection.send(ada.bytes(
            "DELETE",
            &format!("/plants/{id}"),
            &[("Content-Length", &length.to_string())],
            None,
        ));
        let _ = connection.try_send(vec![b'x'; length]);
        assert_eq!(connection.read_response(false).status, 204, "{length} bytes");
    }
});

engine_test!(exactly_one_of_many_concurrent_deletes_succeeds, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..12).map(|_| scope.spawn(|| ada.delete(1).status)).collect();
        racers.into_iter().map(|racer| racer.join().expect("a racer")).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 204).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 404).count(), 11, "{statuses:?}");
});
