//! A client that sends exactly the bytes it is given.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::PATIENCE;

/// An HTTP/1.1 answer, body de-chunked.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

/// A connection with deadlines on every read and write.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    send(
        address,
        format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes(),
    )
}

/// POSTs JSON with extra header lines.
pub fn post(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    send(address, &request(path, headers, body.as_bytes()))
}

/// The bytes of a POST with a `Content-Length`.
pub fn request(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        body.len()
    )
    .into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// The bytes of a POST in chunks of `size`.
pub fn chunked_request(path: &str, body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    .into_bytes();
    for chunk in body.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

/// Sends `bytes` and reads one answer.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = connect(address);
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    read_answer(&mut stream)
}

/// Reads one answer to its end.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    try_read_answer(stream)
        .unwrap_or_else(|bytes| panic!("no whole answer: {:?}", String::from_utf8_lossy(&bytes)))
}

/// Reads one answer to its end, or what came before the connection ended.
pub fn try_read_answer(stream: &mut TcpStream) -> Result<Answer, Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        if let Some(answer) = parse_so_far(&bytes, false) {
            return Ok(answer);
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return parse(&bytes).ok_or(bytes),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// One answer and whatever came of it before the connection ended.
pub fn parse(bytes: &[u8]) -> Option<Answer> {
    parse_so_far(bytes, true)
}

fn parse_so_far(bytes: &[u8], closed: bool) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.lines();
    let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    if status < 200 {
        return parse_so_far(&bytes[end..], closed);
    }
    let value = |name: &str| {
        headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    };
    let rest = &bytes[end..];
    let body = if value("transfer-encoding")
        .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    {
        dechunk(rest, closed)?
    } else if let Some(length) =
        value("content-length").and_then(|length| length.parse::<usize>().ok())
    {
        (rest.len() >= length || closed).then(|| rest[..length.min(rest.len())].to_vec())?
    } else {
        closed.then(|| rest.to_vec())?
    };
    Some(Answer {
        status,
        headers,
        body,
    })
}

fn dechunk(mut rest: &[u8], closed: bool) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let Some(line) = rest.windows(2).position(|window| window == b"\r\n") else {
            return closed.then_some(body);
        };
        let size = usize::from_str_radix(
            std::str::from_utf8(&rest[..line]).ok()?.split(';').next()?,
            16,
        )
        .ok()?;
        if size == 0 {
            return Some(body);
        }
        let from = line + 2;
        if rest.len() < from + size + 2 {
            if closed {
                body.extend_from_slice(&rest[from.min(rest.len())..]);
                return Some(body);
            }
            return None;
        }
        body.extend_from_slice(&rest[from..from + size]);
        rest = &rest[from + size + 2..];
    }
}

/// Everything that comes until the connection ends, however it ends.
pub fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Reads until `wanted` has been seen; the result is everything up to then.
pub fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(wanted.as_bytes()) {
        let read = stream.read(&mut byte).unwrap();
        assert!(read > 0, "ended early: {}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}
