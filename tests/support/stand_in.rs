//! Stand-ins for a worker: one that hands on to a worker and keeps every byte that came, one that
//! gives an answer learnt by heart.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::scripted::{WELL, is_probe};

type Stream = Arc<Mutex<Vec<u8>>>;

/// Stands before a worker and keeps what is sent to it, byte for byte.
pub struct Tap {
    pub address: SocketAddr,
    streams: Arc<Mutex<Vec<Stream>>>,
}

/// A request as it came over the wire.
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

impl Tap {
    pub fn before(worker: SocketAddr) -> Self {
        let streams: Arc<Mutex<Vec<Stream>>> = Arc::default();
        let kept = streams.clone();
        let address = listen(move |client| {
            let stream = Stream::default();
            kept.lock().unwrap().push(stream.clone());
            let Ok(worker) = TcpStream::connect(worker) else {
                return;
            };
            let (from, to) = (worker.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || copy(from, to, |_| ()));
            copy(client, worker, |bytes| {
                stream.lock().unwrap().extend_from_slice(bytes);
            });
        });
        Self { address, streams }
    }

    /// The whole requests that came since the last call.
    pub fn take(&self) -> Vec<Seen> {
        let mut seen = Vec::new();
        for stream in self.streams.lock().unwrap().iter() {
            let mut bytes = stream.lock().unwrap();
            while let Some((request, length)) = first_request(&bytes) {
                if !is_probe(request.head.as_bytes()) {
                    seen.push(request);
                }
                bytes.drain(..length);
            }
        }
        seen
    }

    /// Every byte that came since the last call, connection by connection.
    pub fn take_bytes(&self) -> Vec<u8> {
        let streams = self.streams.lock().unwrap();
        let taken = streams.iter();
        taken
            .flat_map(|stream| std::mem::take(&mut *stream.lock().unwrap()))
            .collect()
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut look: impl FnMut(&[u8])) {
    let mut chunk = vec![0; 256 * 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk) {
        look(&chunk[..read]);
        if to.write_all(&chunk[..read]).is_err() {
            break;
        }
    }
    // Either side may be gone already.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// The first request of a connection and its length; the tests' workers get a `Content-Length`.
fn first_request(bytes: &[u8]) -> Option<(Seen, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(0, |(_, length)| length.trim().parse().unwrap());
    let body = bytes.get(end..end + length)?.to_vec();
    Some((Seen { head, body }, end + length))
}

/// Answers every request with the same bytes and closes the connection.
pub struct Canned {
    pub address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Canned {
    /// Answers with exactly these bytes; none at all is a worker that hangs up.
    pub fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let address = listen(move |mut client| {
            let mut request = Vec::new();
            let mut chunk = [0; 64 * 1024];
            while first_request(&request).is_none() {
                match client.read(&mut chunk) {
                    Ok(read @ 1..) => request.extend_from_slice(&chunk[..read]),
                    _ => return,
                }
            }
            if is_probe(&request) {
                let _ = client.write_all(WELL);
                return;
            }
            counted.fetch_add(1, Ordering::AcqRel);
            // Whoever asked may have left.
            let _ = client.write_all(&bytes);
        });
        Self { address, requests }
    }

    /// Answers 200 with that JSON.
    pub fn json(body: &str) -> Self {
        Self::answering(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    /// How many requests were answered.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }
}

/// Listens on a free port for as long as the process lives, one thread for each connection.
fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(client));
        }
    });
    address
}
