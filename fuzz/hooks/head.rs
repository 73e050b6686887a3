/// Parses what operations take from the head of a request. Included in the module `api` when fuzzing.
pub fn fuzz_head(mut parts: hyper::http::request::Parts) {
    use axum::extract::{FromRef, FromRequestParts};
    use futures_util::FutureExt as _;

    use crate::observe::Context;
    use std::sync::Arc;

    struct App(Arc<Context>);

    impl FromRef<App> for Arc<Context> {
        fn from_ref(app: &App) -> Self {
            Self::clone(&app.0)
        }
    }

    fn parse<T: FromRequestParts<App>>(parts: &mut hyper::http::request::Parts, app: &App) -> Option<T> {
        T::from_request_parts(parts, app).now_or_never().expect("it does not wait").ok()
    }

    let client = std::net::Ipv4Addr::LOCALHOST.into();
    let context = Context::new(&parts.headers, client, std::time::Instant::now(), parts.version, Some(parts.method.clone()), "");
    let app = App(Arc::new(context));
    let _ = parse::<crate::auth::Public>(&mut parts, &app);
    let _ = parse::<extract::PathId>(&mut parts, &app);
    let _ = parse::<extract::PathUser>(&mut parts, &app);
    let _ = parse::<listing::PlantQuery>(&mut parts, &app);
    let _ = parse::<idempotency::RequestKey>(&mut parts, &app);
    let _ = parse::<idempotency::NoKey>(&mut parts, &app);
    let _ = parse::<listing::ListQuery>(&mut parts, &app);
    let tag = EntityTag::of_bytes(b"list").header();
    if let Some(condition) = IfNoneMatch::of(&parts.headers) {
        condition.matches(&tag);
        parts.headers.append(hyper::header::IF_NONE_MATCH, tag.clone());
        assert!(IfNoneMatch::of(&parts.headers).expect("a condition").matches(&tag));
    }
    accepts_gzip(&parts.headers);
    accepts_html(&parts.headers);
}
