//! Pages for people: the web console and the interactive API documentation. Static files and their content security policy.

mod console;
mod static_files;

use hyper::header::HeaderValue;

pub use self::console::SignIn;
pub(crate) use self::console::{files as console_files, is_navigation, not_found};
use self::static_files::{HTML, SCRIPT, STYLE};
pub(crate) use self::static_files::{PageFile, StaticFile};

/// Content security policy of the documentation: scripts, styles and requests only from and to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const BACK: &str = r#"<a href="/">Back to the plants</a>"#;

/// A file of Swagger UI, which the build script has unpacked.
macro_rules! swagger_file {
    ($name:literal) => {
        &include_bytes!(concat!(env!("OUT_DIR"), "/", $name))[..]
    };
}

/// Returns the page of the API documentation and its files. They are for people, so the OpenAPI document omits them.
pub(crate) fn docs_files(console: bool) -> impl Iterator<Item = PageFile> {
    let html = include_str!("web/docs/index.html").replace(BACK, if console { BACK } else { "" });
    let page = || StaticFile::new(html.clone(), HTML);
    let files = [
        ("/docs", page()),
        ("/docs/", page()),
        ("/docs/page.css", StaticFile::new(include_str!("web/docs/page.css"), STYLE)),
        ("/docs/theme.js", StaticFile::new(include_str!("web/console/theme.js"), SCRIPT)),
        ("/docs/start.js", StaticFile::new(include_str!("web/docs/start.js"), SCRIPT)),
        ("/docs/swagger-ui.css", StaticFile::new(swagger_file!("swagger-ui.css"), STYLE)),
        ("/docs/swagger-ui-bundle.js", StaticFile::new(swagger_file!("swagger-ui-bundle.js"), SCRIPT)),
        ("/docs/favicon-32x32.png", StaticFile::new(swagger_file!("favicon-32x32.png"), "image/png")),
    ];
    files.into_iter().map(|(path, file)| PageFile { path, file, policy: HeaderValue::from_static(POLICY) })
}
