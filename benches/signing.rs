//! What signing and verifying one request costs.
//!
//! Prints nanoseconds for each, with the machine's core count: the payload is written anew every
//! time, as it is for a request. `cargo bench --bench signing`.

use std::{hint::black_box, thread, time::Instant};

use http::{HeaderMap, HeaderValue};
use kindred::wire::{
    Role,
    headers::{AFFINITY_AUTH, AFFINITY_ID, DISAGG_AUTH},
    signature::{AffinityClaim, KvTransfer, SigningKeys, SigningProfile},
    verify::{SignedFacts, Verifier},
};
use secrecy::SecretString;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TIMES: u32 = 300_000;
const PARENT: &str = "0f4a52a1-6a6c-4a54-b0ad-0c6a3f6e9c01";
const CHILD: &str = "c1ab9f4e-71d0-4f2b-9f0e-5b7d7a7e1b02";
const MODEL: &str = "meta-llama/Llama-3.3-70B-Instruct";

fn main() {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores, ns for each request, best of 5 rounds of {TIMES}");
    for profile in [SigningProfile::Trtllm, SigningProfile::Dynamo] {
        let signature = sign_affinity(profile);
        verify_affinity(profile, &signature, &["new"]);
        verify_affinity(profile, &signature, &["newer", "new"]);
    }
    kv_transfer();
}

fn keys(secrets: &[&str]) -> SigningKeys {
    let secret = |secret: &&str| SecretString::from(secret.repeat(8));
    let secrets: Vec<SecretString> = secrets.iter().map(secret).collect();
    SigningKeys::of(&secrets).expect("a key")
}

fn sign_affinity(profile: SigningProfile) -> String {
    let keys = keys(&["new"]);
    let sign = |request_id: u64| {
        let claim = AffinityClaim {
            role: Role::Context,
            model: MODEL,
            conversation_id: Some(CHILD),
            affinity_id: PARENT,
            request_type: Some("context_only"),
            disagg_request_id: Some(request_id.into()),
        };
        keys.sign_payload(&claim.payload(profile).expect("a context request"))
    };
    measure(&format!("{}: sign affinity", profile.name()), || {
        black_box(sign(black_box(1 << 41)));
    });
    sign(1 << 41)
}

fn verify_affinity(profile: SigningProfile, signature: &str, secrets: &[&str]) {
    let verifier = Verifier {
        role: Some(Role::Context),
        profile,
        keys: Some(keys(secrets)),
    };
    let mut headers = HeaderMap::new();
    headers.insert(AFFINITY_ID, HeaderValue::from_static(PARENT));
    let signature = HeaderValue::from_str(signature).expect("hexadecimal digits");
    headers.insert(AFFINITY_AUTH, signature);
    let facts = SignedFacts {
        model: MODEL.into(),
        conversation_id: Some(CHILD.into()),
        request_type: Some("context_only".into()),
        disagg_request_id: Some((1 << 41).into()),
    };
    let what = format!(
        "{}: verify affinity, {} keys",
        profile.name(),
        secrets.len()
    );
    measure(&what, || {
        let verdict = verifier.affinity(black_box(&headers), black_box(&facts));
        assert!(matches!(verdict, Ok(Some(_))));
    });
}

fn kv_transfer() {
    let state = format!("\"{}\"", "b3BhcXVl".repeat(64));
    let transfer = KvTransfer::new(Some(&state), Some("\"tcp://10.0.0.1:5000\"")).expect("JSON");
    let verifier = Verifier {
        keys: Some(keys(&["new"])),
        ..Verifier::default()
    };
    let keys = keys(&["new"]);
    let what = format!("KV transfer, {} bytes of state", state.len());
    measure(&format!("{what}: sign"), || {
        black_box(keys.sign_payload(&black_box(&transfer).canonical()));
    });
    let signature = keys.sign_payload(&transfer.canonical());
    let mut headers = HeaderMap::new();
    let signature = HeaderValue::from_str(&signature).expect("hexadecimal digits");
    headers.insert(DISAGG_AUTH, signature);
    measure(&format!("{what}: verify"), || {
        let verdict = verifier.kv_transfer(black_box(&headers), black_box(&transfer));
        assert!(matches!(verdict, Ok(Some(_))));
    });
}

fn measure(what: &str, mut act: impl FnMut()) {
    let round = |act: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..TIMES).for_each(|_| act());
        start.elapsed().as_nanos() / u128::from(TIMES)
    };
    let best = (0..5).map(|_| round(&mut act)).min();
    println!("{what}: {}", best.unwrap_or_default());
}
