//! Every parser of bytes from outside, as a function that must neither panic nor hang. The corpus
//! test, `make fuzz` and libFuzzer (`fuzz/libfuzzer`) all run these functions.

pub mod paging_states;
pub mod sstable_files;

use bytes::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;

/// A parser under test.
pub struct Target {
    /// Its name, and that of its folder in `corpus/`.
    pub name: &'static str,
    /// Feeds it.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", run: server::protocol::fuzz_frame },
    Target { name: "cql_text", run: cql_text },
    Target { name: "paging_state", run: paging_states::run },
    Target { name: "commitlog_record", run: engine::commitlog::fuzz_segment },
    Target { name: "mutation", run: mutation },
    Target { name: "request", run: request },
    Target { name: "internode", run: internode },
    Target { name: "value", run: value },
    Target { name: "sstable", run: sstable_files::run },
];

fn cql_text(bytes: &[u8]) {
    let _ = cql::syntax::parse(&String::from_utf8_lossy(bytes));
}

fn mutation(bytes: &[u8]) {
    if let Ok(mutation) = model::mutation::Mutation::parse(Bytes::copy_from_slice(bytes)) {
        let parts = mutation.parts();
        for (key, row) in parts.rows {
            assert!(key.0.len() + row.cells().count() < usize::MAX);
        }
    }
}

fn request(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let _ = replica::wire::decode_request(&bytes);
    let _ = (replica::wire::decode_arrivals(&bytes), replica::wire::decode_others(&bytes));
    let _ = replica::wire::decode_response(bytes);
}

fn internode(bytes: &[u8]) {
    internode::frame::fuzz_frames(bytes);
    internode::handshake::fuzz_handshake(bytes);
}

/// The first byte chooses a type, the rest is a value of it.
fn value(bytes: &[u8]) {
    use model::types::{CqlNotation, CqlType, JsonNotation, NO_LIMIT, Value, compare, push_text, validate};
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let scalars = [
        CqlType::Text,
        CqlType::Varint,
        CqlType::Decimal,
        CqlType::Duration,
        CqlType::Inet,
        CqlType::Timeuuid,
        CqlType::Date,
    ];
    let scalar = scalars[choice as usize % scalars.len()].clone();
    let ty = match choice / 16 {
        0..=3 => scalar,
        4..=6 => CqlType::list(scalar),
        7..=9 => CqlType::set(scalar),
        10..=12 => CqlType::map(CqlType::Int, scalar),
        _ => CqlType::tuple([CqlType::Int, scalar]),
    };
    if validate(&ty, rest).is_ok()
        && let Ok(value) = Value::decode(&ty, rest)
    {
        let _ = value.encode(&ty);
        for written in [
            push_text(CqlNotation, &ty, Some(rest), NO_LIMIT, &mut String::new()),
            push_text(JsonNotation::SHOWN, &ty, Some(rest), NO_LIMIT, &mut String::new()),
        ] {
            written.expect("a valid value can be written");
        }
    }
    let (a, b) = rest.split_at(rest.len() / 2);
    assert_eq!(compare(&ty, a, b), compare(&ty, b, a).reverse());
}

/// Damages bytes as a network, a disk or an attacker might.
pub fn damage(bytes: &mut Vec<u8>, rng: &mut SmallRng) {
    for _ in 0..rng.gen_range(1..6) {
        let at = rng.gen_range(0..bytes.len().max(1));
        match rng.gen_range(0..6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << rng.gen_range(0..8),
            1 if !bytes.is_empty() => bytes[at] = [0, 0x7f, 0x80, 0xff][rng.gen_range(0..4)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at.min(bytes.len()), rng.r#gen()),
            4 if !bytes.is_empty() => {
                let end = (at + rng.gen_range(1..16)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = rng.gen_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
            _ if !bytes.is_empty() => drop(bytes.remove(at)),
            _ => bytes.push(rng.r#gen()),
        }
    }
}
