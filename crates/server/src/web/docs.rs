//! The interactive API documentation. All files are part of the binary, and the page may not load anything from elsewhere.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::header::HeaderValue;

use super::static_files::{HTML, PageFile, SCRIPT, STYLE, StaticFile};

/// Content security policy: scripts, styles and requests only from and to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's link to the console.
const BACK: &str = r#"<a href="/">Back to the plants</a>"#;

/// Returns the page and its files. They are for people, so the OpenAPI document does not describe them.
pub(crate) fn files(console: bool) -> impl Iterator<Item = PageFile> {
    let html = include_str!("docs/index.html").replace(BACK, if console { BACK } else { "" });
    let page = || StaticFile::new(html.clone(), HTML);
    let files = [
        ("/docs", page()),
        ("/docs/", page()),
        ("/docs/page.css", StaticFile::new(include_str!("docs/page.css"), STYLE)),
        ("/docs/theme.js", StaticFile::new(include_str!("console/theme.js"), SCRIPT)),
        ("/docs/start.js", StaticFile::new(include_str!("docs/start.js"), SCRIPT)),
        ("/docs/swagger-ui.css", swagger_file("swagger-ui.css", STYLE)),
        ("/docs/swagger-ui-bundle.js", swagger_file("swagger-ui-bundle.js", SCRIPT)),
        ("/docs/favicon-32x32.png", swagger_file("favicon-32x32.png", "image/png")),
    ];
    files.into_iter().map(|(path, file)| PageFile { path, file, policy: HeaderValue::from_static(POLICY) })
}

/// Returns a file of Swagger UI.
fn swagger_file(name: &str, content_type: &'static str) -> StaticFile {
    let file = utoipa_swagger_ui::serve(name, Arc::default()).ok().flatten();
    match file.map(|file| file.bytes) {
        Some(Cow::Borrowed(bytes)) => StaticFile::new(bytes, content_type),
        _ => unreachable!("{name} is embedded in the binary"),
    }
}
