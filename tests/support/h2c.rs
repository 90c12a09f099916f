//! HTTP/2 without TLS, frame by frame: a client that may send what no library would.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::raw::{Answer, connect};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// POSTs JSON, at most 16 KiB, with extra header fields and trailers exactly as given. The answer
/// has no headers; its status is 0 where the stream or the connection was refused.
pub fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    trailers: &[(&str, &str)],
) -> Answer {
    let mut stream = open(address, path, headers, body, trailers);
    read_answer(&mut stream)
}

/// As [`post`], without waiting for the answer.
pub fn open(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    trailers: &[(&str, &str)],
) -> TcpStream {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    let mut bytes = begin("POST", path, &all, 0);
    if trailers.is_empty() {
        frame(&mut bytes, DATA, END_STREAM, 1, body);
    } else {
        frame(&mut bytes, DATA, 0, 1, body);
        let mut fields = Vec::new();
        for (name, value) in trailers {
            field(&mut fields, name, value);
        }
        frame(&mut bytes, HEADERS, END_HEADERS | END_STREAM, 1, &fields);
    }
    send(address, &bytes)
}

/// Sends a request without a body; the answer is as that of [`post`].
pub fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    read_answer(&mut send(
        address,
        &begin(method, path, headers, END_STREAM),
    ))
}

/// A connection's first bytes, and a request's head.
fn begin(method: &str, path: &str, headers: &[(&str, &str)], end: u8) -> Vec<u8> {
    let mut fields = Vec::new();
    let own = [
        (":method", method),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", path),
    ];
    for (name, value) in own.iter().chain(headers) {
        field(&mut fields, name, value);
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, SETTINGS, 0, 0, &[]);
    frame(&mut bytes, HEADERS, END_HEADERS | end, 1, &fields);
    bytes
}

fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    // The server may refuse and close before it has read everything.
    let _ = stream.write_all(bytes);
    stream
}

/// Resets the stream that [`open`] began.
pub fn reset(stream: &mut TcpStream) {
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let mut bytes = Vec::new();
    frame(&mut bytes, RST_STREAM, 0, 1, &CANCEL);
    stream.write_all(&bytes).unwrap();
}

/// Reads the answer to what [`open`] began. Where the stream is reset in the middle, what came.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut answer = Answer {
        status: 0,
        headers: Vec::new(),
        body: Vec::new(),
    };
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        let (kind, flags) = (head[3], head[4]);
        let mut reply = Vec::new();
        match kind {
            SETTINGS if flags & ACK == 0 => frame(&mut reply, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(&mut reply, PING, ACK, 0, &payload),
            HEADERS if answer.status == 0 => answer.status = status(&payload),
            DATA => answer.body.extend_from_slice(&payload),
            RST_STREAM | GOAWAY => break,
            _ => {}
        }
        let _ = stream.write_all(&reply);
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            break;
        }
    }
    answer
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    assert!(payload.len() <= 16 * 1024, "larger than a frame");
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A literal field without indexing (RFC 7541 section 6.2.2), text as latin-1 bytes.
fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        let bytes: Vec<u8> = text.chars().map(|c| c as u32 as u8).collect();
        let mut length = bytes.len();
        if length < 127 {
            out.push(length as u8);
        } else {
            out.push(127);
            length -= 127;
            while length >= 128 {
                out.push((length % 128) as u8 | 128);
                length /= 128;
            }
            out.push(length as u8);
        }
        out.extend_from_slice(&bytes);
    }
}

/// `:status`, which is a header block's first field.
fn status(block: &[u8]) -> u16 {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block {
        [indexed @ 0x88..=0x8e, ..] => INDEXED[usize::from(indexed - 0x88)],
        [0x48 | 0x08 | 0x18, length, value @ ..] if length & 0x80 == 0 => {
            let text = std::str::from_utf8(&value[..usize::from(*length)]).unwrap();
            text.parse().unwrap()
        }
        [0x48 | 0x08 | 0x18, _, value @ ..] => huffman_digits(value),
        _ => panic!("no status at the start of {block:?}"),
    }
}

/// Three digits in the code of RFC 7541 appendix B: five bits for 0 to 2, six for the others.
fn huffman_digits(bytes: &[u8]) -> u16 {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut bits = bits.as_str();
    let mut number = 0;
    for _ in 0..3 {
        let short = u16::from_str_radix(&bits[..5], 2).unwrap();
        let digit = if short <= 2 {
            bits = &bits[5..];
            short
        } else {
            let long = u16::from_str_radix(&bits[..6], 2).unwrap();
            bits = &bits[6..];
            long - 0b011001 + 3
        };
        number = number * 10 + digit;
    }
    number
}
