//! A polite user beside the overload: one connection, one request at a time, a pause after each.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::generator::{LoadReport, RequestMix, response};

/// Pause between a response and the next request.
const PAUSE: Duration = Duration::from_millis(5);
/// Timeout of a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `load` beside a polite user, and returns what both of them got.
pub(crate) fn run_beside(
    address: SocketAddr,
    token: &str,
    mix: RequestMix,
    load: impl FnOnce() -> Result<LoadReport>,
) -> Result<(LoadReport, LoadReport)> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let polite = scope.spawn(|| run(address, token, mix, &ended));
        let report = load();
        ended.store(true, Ordering::Relaxed);
        let polite = polite.join().ok().context("the thread of the polite user")?;
        Ok((report?, polite?))
    })
}

fn run(address: SocketAddr, token: &str, mix: RequestMix, ended: &AtomicBool) -> Result<LoadReport> {
    let (mut report, mut random) = (LoadReport::default(), getrandom::u64()?);
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    while !ended.load(Ordering::Relaxed) {
        random = random.wrapping_add(1);
        let kind = mix.kind(random);
        let sent = Instant::now();
        stream.write_all(kind.request(token, random).as_bytes())?;
        report.sent += 1;
        let status = read_status(&mut stream)?;
        report.count(status, kind, sent);
        #[expect(clippy::disallowed_methods, reason = "the pace of the load, not a wait for a condition")]
        thread::sleep(PAUSE);
    }
    report.sort();
    Ok(report)
}

fn read_status(stream: &mut TcpStream) -> Result<u16> {
    let (mut received, mut buffer) = (Vec::new(), [0; 16 * 1_024]);
    loop {
        let length = stream.read(&mut buffer).context("a response to the polite user")?;
        ensure!(length > 0, "the connection of the polite user was closed");
        received.extend_from_slice(&buffer[..length]);
        if let Some((status, _)) = response(&received)? {
            return Ok(status);
        }
    }
}
