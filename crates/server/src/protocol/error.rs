//! Encodes ERROR bodies: the code, the message and the fields of each error.

use super::{Reply, Version, write};
use bytes::{BufMut, BytesMut};
use cql::Error;
use std::net::IpAddr;

/// The reason code for an unknown failure of a replica.
const UNKNOWN_REASON: u16 = 0;

/// Appends the body of an ERROR frame. A client that did not negotiate the rate limit error gets a
/// configuration error instead. `node` is this node's address, if known: version 5 lists the
/// replicas that failed.
pub fn write(out: &mut BytesMut, reply: &Reply, node: Option<IpAddr>, error: &Error) {
    let (version, rate_limit) = (reply.version, reply.rate_limit);
    out.put_i32(code(version, rate_limit, error));
    match error {
        Error::RateLimit(refusal) => write::in_place(out, |out| refusal.append_text(out)),
        other => write::formatted(out, other),
    }
    match error {
        Error::Server(_)
        | Error::Protocol(_)
        | Error::BadCredentials(_)
        | Error::Overloaded(_)
        | Error::ReplicaOverloaded(_)
        | Error::Bootstrapping(_)
        | Error::Truncate(_)
        | Error::Syntax(_)
        | Error::Unauthorized(_)
        | Error::Invalid(_)
        | Error::Configuration(_) => {}
        Error::Unavailable { consistency, required, alive } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*required);
            out.put_i32(*alive);
        }
        Error::WriteTimeout { consistency, received, required, kind, .. } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*received);
            out.put_i32(*required);
            write::string(out, kind.name());
        }
        Error::ReadTimeout { consistency, received, required, data_present, .. } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*received);
            out.put_i32(*required);
            out.put_u8(u8::from(*data_present));
        }
        Error::ReadFailure { consistency, received, required, failures, nodes, data_present, .. } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*received);
            out.put_i32(*required);
            put_failures(out, version, nodes, node, *failures);
            out.put_u8(u8::from(*data_present));
        }
        Error::WriteFailure { consistency, received, required, failures, nodes, kind, .. } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*received);
            out.put_i32(*required);
            put_failures(out, version, nodes, node, *failures);
            write::string(out, kind.name());
        }
        Error::FunctionFailure { keyspace, function, argument_types, .. } if version >= Version::V4 => {
            write::string(out, keyspace);
            write::string(out, function);
            write::string_list(out, argument_types);
        }
        Error::FunctionFailure { .. } => {}
        Error::AlreadyExists { keyspace, table, .. } => {
            write::string(out, keyspace);
            write::string(out, table);
        }
        Error::Unprepared(id) => write::short_bytes(out, id),
        Error::RateLimit(refusal) => {
            if rate_limit {
                out.put_u8(u8::from(refusal.is_write()));
                out.put_u8(u8::from(refusal.rejected_by_coordinator));
            }
        }
    }
}

/// The replicas that failed: their number, or from version 5 on their addresses and reasons.
/// Without addresses, this node has failed.
fn put_failures(out: &mut impl BufMut, version: Version, nodes: &[IpAddr], own: Option<IpAddr>, failures: i32) {
    if version < Version::V4 {
        return;
    }
    if version == Version::V4 {
        return out.put_i32(failures);
    }
    let own = own.filter(|_| failures > 0 && nodes.is_empty());
    out.put_i32(nodes.len() as i32 + i32::from(own.is_some()));
    for node in nodes.iter().copied().chain(own) {
        write::address(out, node);
        out.put_u16(UNKNOWN_REASON);
    }
}

/// The error code for the client. Version 3 has no failures; they are sent as timeouts.
pub fn code(version: Version, rate_limit: bool, error: &Error) -> i32 {
    match error {
        Error::RateLimit(_) if !rate_limit => 0x2300,
        Error::ReadFailure { .. } if version < Version::V4 => 0x1200,
        Error::WriteFailure { .. } if version < Version::V4 => 0x1100,
        Error::FunctionFailure { .. } if version < Version::V4 => 0x2200,
        other => other.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql::api::Consistency;
    use cql::error::WriteType;
    use cql::rate_limit_error::RateLimitError;
    use model::TableId;
    use replica::{Excess, LimitKind, LimitedBy, RateLimited};

    fn limited(kind: LimitKind, rejected_by_coordinator: bool) -> Error {
        let (table, by, excess) = (TableId::from_bytes([1; 16]), LimitedBy::Table, Excess::default());
        let refused = RateLimited { kind, table, by, partition: 1, excess };
        Error::RateLimit(RateLimitError { target: "ks.t".into(), refused, rejected_by_coordinator })
    }

    fn body(version: Version, rate_limit: bool, error: &Error) -> Vec<u8> {
        let mut out = BytesMut::new();
        let node = Some(IpAddr::from([127, 0, 0, 9]));
        write(&mut out, &Reply { rate_limit, ..Reply::plain(version, 0) }, node, error);
        let message = error.to_string();
        assert_eq!(&out[4..6], &(message.len() as u16).to_be_bytes());
        assert_eq!(&out[6..6 + message.len()], message.as_bytes());
        [&out[..4], &out[6 + message.len()..]].concat()
    }

    #[test]
    fn bodies_by_code() {
        let consistency = Consistency::Quorum;
        let target = "ks.t".to_owned();
        let cases: Vec<(Error, &[u8])> = vec![
            (Error::Invalid("x".into()), &[0, 0, 0x22, 0]),
            (Error::Unavailable { consistency, required: 2, alive: 1 }, &[0, 0, 0x10, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 1]),
            (
                Error::WriteTimeout {
                    target: target.clone(),
                    consistency,
                    received: 1,
                    required: 2,
                    kind: WriteType::Simple,
                },
                b"\0\0\x11\0\0\x04\0\0\0\x01\0\0\0\x02\0\x06SIMPLE",
            ),
            (
                Error::ReadTimeout {
                    target: target.clone(),
                    consistency,
                    received: 1,
                    required: 2,
                    data_present: true,
                },
                b"\0\0\x12\0\0\x04\0\0\0\x01\0\0\0\x02\x01",
            ),
            (
                Error::AlreadyExists { keyspace: "k".into(), table: String::new(), message: "m".into() },
                &[0, 0, 0x24, 0, 0, 1, b'k', 0, 0],
            ),
            (
                Error::Unprepared([7; 16]),
                b"\0\0\x25\0\0\x10\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07",
            ),
            (
                Error::FunctionFailure {
                    keyspace: "k".into(),
                    function: "f".into(),
                    argument_types: vec!["text".into()],
                    message: "m".into(),
                },
                b"\0\0\x14\0\0\x01k\0\x01f\0\x01\0\x04text",
            ),
            (limited(LimitKind::Write, false), &[0, 0, 0xF0, 0, 1, 0]),
            (limited(LimitKind::ReadBytes, true), &[0, 0, 0xF0, 0, 0, 1]),
        ];
        for (error, expected) in cases {
            assert_eq!(body(Version::V4, true, &error), expected, "{error:?}");
        }
        let failure = Error::ReadFailure {
            target: target.clone(),
            consistency,
            received: 1,
            required: 2,
            failures: 3,
            nodes: Vec::new(),
            data_present: false,
            why: String::new(),
        };
        assert_eq!(body(Version::V4, true, &failure), b"\0\0\x13\0\0\x04\0\0\0\x01\0\0\0\x02\0\0\0\x03\0");
        assert_eq!(body(Version::V3, true, &failure), b"\0\0\x12\0\0\x04\0\0\0\x01\0\0\0\x02\0");
        let expected = b"\0\0\x13\0\0\x04\0\0\0\x01\0\0\0\x02\0\0\0\x01\x04\x7f\0\0\x09\0\0\0";
        assert_eq!(body(Version::V5, true, &failure), expected);
        let mut elsewhere = failure.clone();
        let Error::ReadFailure { nodes, .. } = &mut elsewhere else { unreachable!() };
        nodes.extend([IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3])]);
        let expected = b"\0\0\x13\0\0\x04\0\0\0\x01\0\0\0\x02\0\0\0\x02\x04\x7f\0\0\x02\0\0\x04\x7f\0\0\x03\0\0\0";
        assert_eq!(body(Version::V5, true, &elsewhere), expected);
        let mut unknown = BytesMut::new();
        write(&mut unknown, &Reply::plain(Version::V5, 0), None, &failure);
        assert_eq!(&unknown[unknown.len() - 5..], [0, 0, 0, 0, 0], "no node, and no data");
        assert_eq!(body(Version::V4, false, &limited(LimitKind::Write, false)), [0, 0, 0x23, 0]);
    }
}
