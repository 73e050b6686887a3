//! The web console: a page at `/` that is a client of the service like any other. Its files are part of the binary.

use axum::Router;

use super::App;
use super::fixed::{Fixed, HTML, SCRIPT, STYLE, pages};

/// Scripts and styles come from this server alone, never from within the page, and no text ever becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const PICTURE: &str = "image/svg+xml";

/// A file of the console, at the address that the page looks for it.
macro_rules! asset {
    ($file:literal, $media_type:expr) => {
        asset!($file, $media_type, concat!("/console/", $file))
    };
    ($file:literal, $media_type:expr, $path:expr) => {
        ($path, Fixed::new(include_bytes!(concat!("console/", $file)).as_slice(), $media_type))
    };
}

/// The addresses of the console.
pub(super) fn routes() -> Router<&'static App> {
    let assets = [
        asset!("index.html", HTML, "/"),
        asset!("style.css", STYLE),
        asset!("icon.svg", PICTURE),
        asset!("theme.js", SCRIPT),
        asset!("app.js", SCRIPT),
        asset!("address.js", SCRIPT),
        asset!("sign-in.js", SCRIPT),
        asset!("token.js", SCRIPT),
        asset!("permissions.js", SCRIPT),
        asset!("overview.js", SCRIPT),
        asset!("list.js", SCRIPT),
        asset!("dialogs.js", SCRIPT),
        asset!("toasts.js", SCRIPT),
        asset!("text.js", SCRIPT),
        asset!("storage.js", SCRIPT),
        asset!("drawing.js", SCRIPT),
        asset!("garden.js", SCRIPT),
        asset!("rules.js", SCRIPT),
        asset!("api.js", SCRIPT),
        asset!("json.js", SCRIPT),
    ];
    pages(assets, POLICY)
}
