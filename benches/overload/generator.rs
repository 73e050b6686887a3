//! Open-loop load generator: one thread, nonblocking sockets, one request in flight per connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

/// Connections opened per millisecond. More would overflow the server's accept queue, and the kernel would retry each
/// dropped connection only after a second.
const CONNECTS_PER_MS: usize = 5;
/// Maximum number of events per call of epoll.
const EVENTS: usize = 512;
/// Timeout for the last responses after the load has ended.
const DRAIN: Duration = Duration::from_secs(5);
/// Timeout of epoll, so that requests are sent when they are due.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RequestMix {
    Lists,
    Creates,
    Mixed,
}

impl RequestMix {
    pub(crate) fn kind(self, random: u64) -> RequestKind {
        match self {
            Self::Lists => RequestKind::List,
            Self::Mixed if random.is_multiple_of(2) => RequestKind::List,
            Self::Creates | Self::Mixed => RequestKind::Create,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    List,
    Create,
}

impl RequestKind {
    pub(crate) fn request(self, token: &str, random: u64) -> String {
        match self {
            Self::List => {
                format!("GET /plants?limit=20 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n")
            }
            Self::Create => {
                let body = format!(r#"{{"id":{},"name":"Monstera deliciosa","tag":"indoor"}}"#, random.cast_signed());
                format!(
                    "POST /plants HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        }
    }
}

/// Counts and latencies of one run.
#[derive(Default)]
pub(crate) struct LoadReport {
    pub(crate) time: Duration,
    pub(crate) sent: u32,
    pub(crate) lists: u32,
    pub(crate) creates: u32,
    /// Responses with status 503.
    pub(crate) rejected: u32,
    /// Other responses, lost connections, and requests without a response.
    pub(crate) failed: u32,
    /// Of successful responses, from sending to the last byte, in microseconds.
    latencies: Vec<u32>,
}

impl LoadReport {
    /// Counts a response to a request that was sent at this time.
    pub(crate) fn count(&mut self, status: u16, kind: RequestKind, sent: Instant) {
        match (status, kind) {
            (200, RequestKind::List) => self.lists += 1,
            (200, RequestKind::Create) => self.creates += 1,
            (503, _) => self.rejected += 1,
            _ => self.failed += 1,
        }
        if status == 200 {
            self.latencies.push(u32::try_from(sent.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
    }

    /// Sorts the latencies, when all responses are counted.
    pub(crate) fn sort(&mut self) {
        self.latencies.sort_unstable();
    }

    /// Successful responses per second.
    pub(crate) fn goodput(&self) -> f64 {
        self.per_second(self.lists + self.creates)
    }

    pub(crate) fn per_second(&self, count: u32) -> f64 {
        f64::from(count) / self.time.as_secs_f64()
    }

    /// Returns the latency in milliseconds that `percent` of the successful responses did not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let index = self.latencies.len().saturating_sub(1) * percent / 100;
        self.latencies.get(index).map_or(0.0, |micros| f64::from(*micros) / 1_000.0)
    }
}

struct LoadConnection {
    stream: TcpStream,
    user: usize,
    in_flight: Option<(RequestKind, Instant)>,
    received: Vec<u8>,
}

pub(crate) struct Generator {
    address: SocketAddr,
    tokens: Vec<String>,
    epoll: OwnedFd,
    connections: Vec<LoadConnection>,
    idle: VecDeque<usize>,
    random: u64,
}

impl Generator {
    pub(crate) fn connect(address: SocketAddr, tokens: &[String], count: usize) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (connections, idle) = (Vec::with_capacity(count), (0..count).collect());
        // Not zero, because xorshift would only return zeros.
        let random = getrandom::u64()? | 1;
        let mut generator = Self { address, tokens: tokens.to_vec(), epoll, connections, idle, random };
        for index in 0..count {
            if index % CONNECTS_PER_MS == 0 {
                #[expect(clippy::disallowed_methods, reason = "the pace of the load, not a wait for a condition")]
                thread::sleep(Duration::from_millis(1));
            }
            let connection = generator.open(index).context("a connection")?;
            generator.connections.push(connection);
        }
        Ok(generator)
    }

    fn open(&self, index: usize) -> Result<LoadConnection> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
        Ok(LoadConnection { stream, user: index % self.tokens.len(), in_flight: None, received: Vec::new() })
    }

    /// Sends `rate` requests per second for `time`, as far as connections are free, and waits for their responses.
    pub(crate) fn run(&mut self, mix: RequestMix, rate: f64, time: Duration) -> Result<LoadReport> {
        let mut report = LoadReport { time, ..LoadReport::default() };
        let mut events = Vec::with_capacity(EVENTS);
        let (begun, mut due) = (Instant::now(), 0.0);
        let mut last = begun;
        loop {
            let now = Instant::now();
            if now < begun + time {
                due += rate * (now - last).as_secs_f64();
                last = now;
                while due >= 1.0 {
                    let Some(index) = self.idle.pop_front() else {
                        // No connection is free. An open loop skips the requests that are due and does not send them later.
                        due = 0.0;
                        break;
                    };
                    due -= 1.0;
                    self.send(index, mix, &mut report)?;
                }
            } else if self.idle.len() == self.connections.len() {
                break;
            } else if now > begun + time + DRAIN {
                self.give_up(&mut report)?;
                break;
            }
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&TICK))?;
            // A response after the end of the run does not count.
            let counts = Instant::now() < begun + time;
            for event in events.drain(..) {
                let index = usize::try_from(event.data.u64())?;
                self.receive(index, counts, &mut report)?;
            }
        }
        report.sort();
        Ok(report)
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn send(&mut self, index: usize, mix: RequestMix, report: &mut LoadReport) -> Result<()> {
        let random = self.next_random();
        let kind = mix.kind(random);
        let connection = &mut self.connections[index];
        let request = kind.request(&self.tokens[connection.user], random);
        connection.in_flight = Some((kind, Instant::now()));
        report.sent += 1;
        match connection.stream.write(request.as_bytes()) {
            Ok(length) if length == request.len() => Ok(()),
            _ => self.replace(index, report),
        }
    }

    fn receive(&mut self, index: usize, counts: bool, report: &mut LoadReport) -> Result<()> {
        let connection = &mut self.connections[index];
        let mut buffer = [0; 16 * 1_024];
        match connection.stream.read(&mut buffer) {
            Ok(0) => return self.replace(index, report),
            Ok(length) => connection.received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return self.replace(index, report),
        }
        let Some((status, length)) = response(&connection.received)? else {
            return Ok(());
        };
        connection.received.drain(..length);
        let Some((kind, sent)) = connection.in_flight.take() else {
            bail!("a response without a request");
        };
        self.idle.push_back(index);
        if counts {
            report.count(status, kind, sent);
        }
        Ok(())
    }

    /// Replaces a connection that was closed.
    fn replace(&mut self, index: usize, report: &mut LoadReport) -> Result<()> {
        let connection = self.open(index).context("another connection")?;
        let before = std::mem::replace(&mut self.connections[index], connection);
        if before.in_flight.is_some() {
            report.failed += 1;
            self.idle.push_back(index);
        }
        Ok(())
    }

    /// Counts requests that got no response as failed.
    fn give_up(&mut self, report: &mut LoadReport) -> Result<()> {
        for index in 0..self.connections.len() {
            if self.connections[index].in_flight.is_some() {
                self.replace(index, report)?;
            }
        }
        Ok(())
    }
}

/// Parses the status and length of the response at the start of `bytes`; `None` if it is incomplete.
pub(crate) fn response(bytes: &[u8]) -> Result<Option<(u16, usize)>> {
    let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..head])?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?.parse()?;
    let length = lines.find_map(|line| line.strip_prefix("content-length: ")).context("a length")?;
    let end = head + 4 + length.parse::<usize>()?;
    Ok((bytes.len() >= end).then_some((status, end)))
}
