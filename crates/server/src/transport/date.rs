//! The `Date` header field.
//!
//! The HTTP library caches the value until the clock reaches the next second. After the clock is set back, all its responses
//! would be dated in the future for that long. Here the value is rendered again whenever the second differs.

use std::cell::RefCell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::HeaderValue;

/// A second since the epoch, and its header value.
type Rendered = (u64, HeaderValue);

thread_local! {
    /// The last value of this thread, because formatting is slower than reading the clock.
    static LAST: RefCell<Option<Rendered>> = const { RefCell::new(None) };
}

/// Returns the wall-clock time in the format of header fields (RFC 9110, 5.6.7).
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
