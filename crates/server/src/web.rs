//! Pages for people: the web console and the API documentation. Static files and their content security policy.

mod console;
mod docs;
mod static_files;

pub use self::console::SignIn;
pub(crate) use self::console::{is_navigation, not_found, routes as console_routes};
pub(crate) use self::docs::routes as docs_routes;
pub(crate) use self::static_files::StaticFile;
