//! HTTP proxy for outgoing requests: CONNECT tunnels and forwarded plain HTTP. Every destination is on loopback, under
//! any host name.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

pub(crate) struct ForwardProxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl ForwardProxy {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a local address");
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let shared = Arc::clone(&heads);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let heads = Arc::clone(&shared);
                std::thread::spawn(move || forward(client, &heads));
            }
        });
        Self { address, heads }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the head of the first request of each connection.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("the heads").clone()
    }
}

fn forward(mut client: TcpStream, heads: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    heads.lock().expect("the heads").push(head.clone());
    let (method, rest) = head.split_once(' ').expect("a method");
    let target = rest.split(' ').next().expect("a target");
    let authority = target.trim_start_matches("http://").split('/').next().expect("an authority");
    let port = authority.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    if method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    } else {
        server.write_all(head.replacen(&format!("http://{authority}"), "", 1).as_bytes())?;
    }
    let mut from_server = server.try_clone()?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut from_server, &mut client);
        client.shutdown(Shutdown::Write)
    });
    io::copy(&mut reader, &mut server)?;
    server.shutdown(Shutdown::Write)
}
