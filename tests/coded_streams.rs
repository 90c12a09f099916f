//! Event streams in a content coding, which pass unread.

mod support;

use std::io::{Read, Write};

use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use support::{
    asking::{CHAT, assert_counted, before, body},
    raw,
    scripted::{self, Scripted},
};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// An event stream in that content coding.
fn coded(coding: &str, body: &[u8]) -> Vec<Vec<u8>> {
    let mut answer = scripted::events(&[&body[..body.len() / 2], &body[body.len() / 2..]]);
    let head = String::from_utf8(answer[0].clone()).unwrap();
    let head = head.replace(
        "\r\n\r\n",
        &format!("\r\ncontent-encoding: {coding}\r\n\r\n"),
    );
    answer[0] = head.into_bytes();
    answer
}

#[test]
fn a_coded_stream_passes_unchanged_to_a_client_that_takes_it() {
    let stream = b"data: {}\n\ndata: [DONE]\n\n".to_vec();
    for (coding, bytes) in [
        ("gzip", gzip(&stream)),
        ("deflate", b"not looked at".to_vec()),
        ("br", b"nor this".to_vec()),
        ("zstd", b"nor that".to_vec()),
    ] {
        let sent = bytes.clone();
        let worker = Scripted::start(move |_| coded(coding, &sent));
        let (_fleet, kindred) = before(worker.address, "");
        for headers in [&[("accept-encoding", coding)][..], &[]] {
            let answer = raw::post(kindred.edge(), CHAT, headers, &body(true));
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("content-encoding"), Some(coding));
            assert_eq!(answer.body, bytes);
        }
        if coding == "gzip" {
            let mut decoded = Vec::new();
            MultiGzDecoder::new(&bytes[..])
                .read_to_end(&mut decoded)
                .unwrap();
            assert_eq!(decoded, stream);
        }
        assert_counted(&kindred, "ok", 2);
        let other = [("accept-encoding", "identity")];
        let answer = raw::post(kindred.edge(), CHAT, &other, &body(true));
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "unusable_answer");
    }
}

/// Nothing that is added in the middle of a coded stream could be decoded, so what came is left as it
/// is, and the connection ends before the answer does.
#[tokio::test]
async fn a_coded_stream_that_breaks_off_ends_visibly() {
    let text = "data: {\"a\":1}\n\n".repeat(100);
    let whole = gzip(text.as_bytes());
    let half = whole[..whole.len() / 2].to_vec();
    let sent = half.clone();
    let worker = Scripted::start(move |_| {
        let mut answer = coded("gzip", &sent);
        answer.pop();
        answer
    });
    let (_fleet, kindred) = before(worker.address, "");
    let mut client = raw::connect(kindred.edge());
    let accepts = [("accept-encoding", "gzip")];
    let request = raw::request(CHAT, &accepts, body(true).as_bytes());
    client.write_all(&request).unwrap();
    let bytes = raw::read_all(&mut client);
    assert!(!bytes.ends_with(b"0\r\n\r\n"), "not framed as a whole one");
    let came = raw::parse(&bytes).unwrap().body;
    assert_eq!(came, half);
    let mut decoded = Vec::new();
    let error = MultiGzDecoder::new(&came[..]).read_to_end(&mut decoded);
    assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(text.as_bytes().starts_with(&decoded));

    let client = reqwest::Client::builder().http2_prior_knowledge().build();
    let request = client.unwrap().post(kindred.url(CHAT));
    let answer = request.body(body(true)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    answer.bytes().await.expect_err("the stream is reset");
    assert_counted(&kindred, "stream_broken", 2);
}
