//! ERROR bodies: what follows the code and the message of each error.

use super::{Version, write};
use bytes::BufMut;
use cql::Error;

/// Appends the body of an ERROR frame. A client that did not negotiate the rate limit's error gets a configuration error.
pub fn write(out: &mut impl BufMut, version: Version, rate_limit: bool, error: &Error) {
    out.put_i32(code(version, rate_limit, error));
    write::string(out, &error.to_string());
    match error {
        Error::Server(_)
        | Error::Protocol(_)
        | Error::BadCredentials(_)
        | Error::Overloaded(_)
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
        Error::ReadFailure { consistency, received, required, failures, data_present, .. } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*received);
            out.put_i32(*required);
            if version >= Version::V4 {
                out.put_i32(*failures);
            }
            out.put_u8(u8::from(*data_present));
        }
        Error::WriteFailure { consistency, received, required, failures, kind, .. } => {
            out.put_u16(*consistency as u16);
            out.put_i32(*received);
            out.put_i32(*required);
            if version >= Version::V4 {
                out.put_i32(*failures);
            }
            write::string(out, kind.name());
        }
        Error::AlreadyExists { keyspace, table, .. } => {
            write::string(out, keyspace);
            write::string(out, table);
        }
        Error::Unprepared(id) => write::short_bytes(out, id),
        Error::RateLimit { write, rejected_by_coordinator, .. } => {
            if rate_limit {
                out.put_u8(u8::from(*write));
                out.put_u8(u8::from(*rejected_by_coordinator));
            }
        }
    }
}

/// The code the client gets. Version 3 knows no failures: they are told as timeouts.
pub fn code(version: Version, rate_limit: bool, error: &Error) -> i32 {
    match error {
        Error::RateLimit { .. } if !rate_limit => 0x2300,
        Error::ReadFailure { .. } if version < Version::V4 => 0x1200,
        Error::WriteFailure { .. } if version < Version::V4 => 0x1100,
        other => other.code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cql::api::Consistency;
    use cql::error::WriteType;

    fn body(version: Version, rate_limit: bool, error: &Error) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, version, rate_limit, error);
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
                Error::RateLimit { target: target.clone(), write: true, rejected_by_coordinator: false },
                &[0, 0, 0xF0, 0, 1, 0],
            ),
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
            data_present: false,
            why: String::new(),
        };
        assert_eq!(body(Version::V4, true, &failure), b"\0\0\x13\0\0\x04\0\0\0\x01\0\0\0\x02\0\0\0\x03\0");
        assert_eq!(body(Version::V3, true, &failure), b"\0\0\x12\0\0\x04\0\0\0\x01\0\0\0\x02\0");
        let limited = Error::RateLimit { target, write: true, rejected_by_coordinator: false };
        assert_eq!(body(Version::V4, false, &limited), [0, 0, 0x23, 0]);
    }
}
