//! The `Date` header field.
//!
//! The HTTP library renders it once and then waits for the clock to reach the next second: after the clock is set back, every
//! response would be dated in the future for as long as that takes. Here any other second is rendered anew.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::HeaderValue;

/// A second since the epoch, and its header value.
type Rendered = (u64, HeaderValue);

thread_local! {
    /// The second that this thread rendered last: formatting costs more than looking at the clock.
    static LAST: RefCell<Option<Rendered>> = const { RefCell::new(None) };
}

/// Returns the wall-clock time as header fields have it (RFC 9110, 5.6.7).
pub(crate) fn now() -> HeaderValue {
    let second = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    LAST.with_borrow_mut(|last| match last {
        Some((rendered, value)) if *rendered == second => value.clone(),
        _ => {
            let value = render(second);
            *last = Some((second, value.clone()));
            value
        }
    })
}

fn render(second: u64) -> HeaderValue {
    let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
    HeaderValue::try_from(text).expect("letters, digits, commas, colons and spaces are a header value")
}
