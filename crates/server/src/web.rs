//! Pages for people: the web console and the API documentation. Static files and their content security policy.

mod console;
mod docs;
mod static_files;

pub use self::console::SignIn;
pub(crate) use self::console::{files as console_files, is_navigation, not_found};
pub(crate) use self::docs::files as docs_files;
pub(crate) use self::static_files::{PageFile, StaticFile};
