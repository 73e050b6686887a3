//! Request ids: the client's own, or a new one. Also hexadecimal digits for response headers.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderValue};
use plantstore_model::token::TOKEN_PREFIX;

use crate::transport::REQUEST_ID;

/// Length of an id that is accepted from a client at most.
const REQUEST_ID_MAX: usize = 128;

/// Returns the id that the client chose, if it is acceptable, or a new one.
pub(super) fn request_id(headers: &HeaderMap) -> HeaderValue {
    headers.get(REQUEST_ID).filter(|id| is_acceptable(id)).cloned().unwrap_or_else(new_request_id)
}

fn is_acceptable(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte);
    // It is logged, so it must not be a token that a client put into the wrong field.
    let token = bytes.windows(TOKEN_PREFIX.len()).any(|window| window == TOKEN_PREFIX.as_bytes());
    (1..=REQUEST_ID_MAX).contains(&bytes.len()) && bytes.iter().all(plain) && !token
}

/// Returns a new id: random digits of this process, then a number.
fn new_request_id() -> HeaderValue {
    static PROCESS: LazyLock<String> = LazyLock::new(|| {
        // Without randomness the ids are still distinct within the process.
        format!("{:016x}", getrandom::u64().unwrap_or(0))
    });
    let mut id = [0; 28];
    let (process, number) = id.split_at_mut(PROCESS.len());
    process.copy_from_slice(PROCESS.as_bytes());
    write_hex(next_number().into(), number);
    // The clone in the response shares the digits.
    let mut id = HeaderValue::from_maybe_shared(Bytes::from_owner(id)).expect("hexadecimal digits are a header value");
    // HTTP/2 would otherwise put each id into the table of the connection's header fields, where nothing refers to it.
    id.set_sensitive(true);
    id
}

/// Returns a number that this process has not used yet. A thread reserves many at a time, because reserving contends with the
/// other threads.
fn next_number() -> u64 {
    const RESERVED: u64 = 1_024;
    static NEXT_FREE: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let exhausted = next.get().is_multiple_of(RESERVED);
        let number = if exhausted { NEXT_FREE.fetch_add(RESERVED, Ordering::Relaxed) } else { next.get() };
        next.set(number + 1);
        number
    })
}

/// Fills `digits` with a number, padded with zeros. Leading digits that do not fit are left out.
pub(crate) fn write_hex(mut number: u128, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}
