use std::{io::Write, sync::Arc, time::Duration};

use flate2::{
    Compression,
    write::{DeflateEncoder, GzEncoder, ZlibEncoder},
};
use proptest::prelude::*;

use super::*;
use crate::{http::body::Budget, telemetry::labels::Outcome};

const MIB: usize = 1 << 20;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn raw_deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    let mut encoder = brotli::CompressorWriter::new(&mut coded, 4096, 4, 22);
    encoder.write_all(bytes).unwrap();
    drop(encoder);
    coded
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

type Encoder = fn(&[u8]) -> Vec<u8>;

const ALL: [(Coding, Encoder); 5] = [
    (Coding::Gzip, gzip),
    (Coding::Deflate, zlib),
    (Coding::Deflate, raw_deflate),
    (Coding::Brotli, brotli),
    (Coding::Zstd, zstd),
];

fn limits(max_body: usize, budget: usize) -> ReadLimits {
    ReadLimits {
        max_body,
        budget,
        min_rate: 1,
        deadline: Duration::from_secs(60),
    }
}

/// What comes of coded data that arrives in parts of `size` bytes.
fn decode(coding: Coding, coded: &[u8], size: usize, max_body: usize) -> Result<Bytes, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    let budget = Arc::new(Budget::default());
    let limits = limits(max_body, 4 * MIB);
    let mut decoding = Decoding::new(coding, limits, Lease::new(budget.clone(), limits.budget));
    for part in coded.chunks(size) {
        let part = Bytes::copy_from_slice(part);
        decoding = runtime.block_on(decoding.feed(part))?;
        assert!(budget.used() <= max_body);
    }
    decoding.finish().map(|(decoded, _)| decoded)
}

fn headers(values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(header::CONTENT_ENCODING, value.parse().unwrap());
    }
    headers
}

#[test]
fn a_coding_is_known_by_its_name() {
    for (values, coding) in [
        (&["gzip"][..], Some(Coding::Gzip)),
        (&["X-GZip"], Some(Coding::Gzip)),
        (&[" deflate "], Some(Coding::Deflate)),
        (&["br"], Some(Coding::Brotli)),
        (&["identity, zstd"], Some(Coding::Zstd)),
        (&["identity", ""], None),
        (&[], None),
    ] {
        assert_eq!(Coding::of(&headers(values)), Ok(coding), "{values:?}");
    }
    for values in [&["lzma"][..], &["gzip, br"], &["gzip", "gzip"], &["gz ip"]] {
        let failure = Coding::of(&headers(values)).unwrap_err();
        assert_eq!(failure.status, 415, "{values:?}");
        let accepts = ("accept-encoding", "gzip, deflate, br, zstd".to_owned());
        assert!(failure.headers.contains(&accepts));
    }
}

#[test]
fn data_that_is_cut_spoilt_or_goes_on_is_refused() {
    let body: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
    for (coding, encode) in ALL {
        let coded = encode(&body);
        let status = |coded: &[u8]| decode(coding, coded, 1000, MIB).unwrap_err().status;
        assert_eq!(status(&coded[..coded.len() - 1]), 400, "{coding:?} is cut");
        assert_eq!(status(&[]), 400, "{coding:?} is empty");
        let more = [&coded[..], b"x"].concat();
        assert_eq!(status(&more), 400, "{coding:?} goes on");
        assert_eq!(status(b"{\"model\":\"m\"}"), 400, "it is no {coding:?}");
        if coding == Coding::Gzip {
            let mut spoilt = coded.clone();
            let checksum = spoilt.len() - 6;
            spoilt[checksum] ^= 1;
            assert_eq!(status(&spoilt), 400, "the checksum is wrong");
        }
    }
}

#[test]
fn a_body_that_unfolds_beyond_the_limit_is_refused() {
    let zeros = vec![b' '; 64 * MIB];
    for (coding, encode) in ALL {
        let bomb = encode(&zeros);
        assert!(bomb.len() < 80 * 1024, "{coding:?}: {}", bomb.len());
        let failure = decode(coding, &bomb, bomb.len(), MIB).unwrap_err();
        assert_eq!((failure.status, failure.outcome), (413, Outcome::TooLarge));
        assert!(failure.message.contains("1048576 bytes once it is decoded"));
    }
}

#[test]
fn the_budget_bounds_what_is_decoded() {
    let bomb = gzip(&vec![b' '; 8 * MIB]);
    let failure = decode(Coding::Gzip, &bomb, bomb.len(), 16 * MIB).unwrap_err();
    assert_eq!(failure.status, 503);
}

#[test]
fn a_window_larger_than_the_standard_allows_is_refused() {
    let mut encoder = ::zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(25).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&vec![b' '; 2 * MIB]).unwrap();
    let coded = encoder.finish().unwrap();
    assert_eq!(
        decode(Coding::Zstd, &coded, 1000, 4 * MIB)
            .unwrap_err()
            .status,
        400
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_was_encoded_is_decoded_however_it_is_cut(
        body in prop::collection::vec(any::<u8>(), 0..200_000),
        size in 1_usize..70_000,
    ) {
        for (coding, encode) in ALL {
            // An encoder may write random data as stored blocks, which raw deflate begins with.
            let decoded = decode(coding, &encode(&body), size.max(100), MIB);
            prop_assert_eq!(decoded.as_deref(), Ok(&body[..]), "{:?}", coding);
        }
    }
}
