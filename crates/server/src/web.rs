//! Pages for people: the web console and the API documentation. Static files and their content security policy.

mod console;
mod docs;
mod sign_in;
mod state;
mod static_files;

pub(crate) use self::console::{is_navigation, not_found, routes as console_routes};
pub(crate) use self::docs::{openapi, routes as docs_routes};
pub use self::sign_in::SignIn;
pub(crate) use self::state::Web;
