//! Decodes the bodies of requests into the types of the query processor.

use super::body::{Body, Text};
use super::event::{EventKind, EventKinds};
use super::frames::{RawFrame, SESSION_BODY};
use super::{Compression, Opcode, Version, flag};
use bytes::Bytes;
use cql::Error;
use cql::api::{Batch, BatchKind, BatchStatement, BoundValue, BoundValues, Consistency, MetadataId, QueryParams};
use smallvec::SmallVec;

/// Bits of the flags of a query's parameters. The flags are a byte, from version 5 on an int.
mod param {
    pub const VALUES: u32 = 0x01;
    pub const SKIP_METADATA: u32 = 0x02;
    pub const PAGE_SIZE: u32 = 0x04;
    pub const PAGING_STATE: u32 = 0x08;
    pub const SERIAL_CONSISTENCY: u32 = 0x10;
    pub const TIMESTAMP: u32 = 0x20;
    pub const NAMES: u32 = 0x40;
    pub const KEYSPACE: u32 = 0x80;
    pub const NOW: u32 = 0x100;
    /// Flags that only version 5 has.
    pub const SINCE_V5: u32 = KEYSPACE | NOW;
    pub const ALL: u32 = 0x1FF;
}

/// The flag of PREPARE for a keyspace.
const PREPARE_KEYSPACE: i32 = 0x01;

/// The key of the custom payload that requests the reason why a page ended, and of the payload that
/// answers it.
pub const PAGE_INFO: &str = "messina-page-info";

/// The key of the custom payload that requests the numbers of a refusal by a rate limit, and of the
/// payload that answers it.
pub const RATE_LIMIT_INFO: &str = "messina-rate-limit";

/// The encoding of requests that a connection has negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dialect {
    /// The compression of bodies, before version 5.
    pub compression: Option<Compression>,
    /// EXECUTE includes the id of the result metadata that the client knows. Always in version 5.
    pub metadata_ids: bool,
}

/// A decoded request. Its keyspace, if given, replaces the connection's.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Request {
    /// Starts the connection.
    Startup {
        /// All options, as sent.
        options: Vec<(String, String)>,
    },
    /// Requests the supported options. Drivers also use it as a heartbeat.
    Options,
    /// A statement as text.
    Query {
        /// The text.
        text: Text,
        /// Its parameters.
        params: QueryParams,
        /// Its own keyspace.
        keyspace: Option<Box<str>>,
    },
    /// Prepares a statement.
    Prepare {
        /// The text.
        text: Text,
        /// Its own keyspace.
        keyspace: Option<Box<str>>,
    },
    /// Executes a prepared statement.
    Execute {
        /// Its id.
        id: [u8; 16],
        /// The id of the result metadata that the client knows, if negotiated.
        metadata_id: Option<MetadataId>,
        /// Its parameters.
        params: QueryParams,
    },
    /// Executes several statements.
    Batch {
        /// The batch.
        batch: Batch,
        /// Its own keyspace.
        keyspace: Option<Box<str>>,
    },
    /// Registers for events.
    Register(EventKinds),
    /// Answers an authentication challenge.
    AuthResponse(Option<Bytes>),
}

impl Request {
    /// Decodes `frame`. A decompressed body has at most `max_body` bytes.
    pub fn decode(frame: RawFrame, dialect: Dialect, max_body: usize) -> Result<Request, Error> {
        let mut bytes = frame.body;
        let version = frame.version;
        if frame.flags & flag::COMPRESSION != 0 && version < Version::V5 {
            let Some(compression) = dialect.compression else {
                return Err(Error::Protocol("A compressed frame, but no compression was negotiated".to_owned()));
            };
            let most = if frame.opcode.is_statement() { max_body } else { max_body.min(SESSION_BODY) };
            bytes = compression.decompress(&bytes, most)?;
        }
        let mut body = Body::new(bytes);
        let has_payload = frame.flags & flag::CUSTOM_PAYLOAD != 0 && version >= Version::V4;
        let asked = if has_payload { body.bytes_map_has([PAGE_INFO, RATE_LIMIT_INFO])? } else { [false; 2] };
        let [page_info, rate_limit_info] = asked;
        let mut keyspace = None;
        Ok(match frame.opcode {
            Opcode::Execute => {
                let with_id = dialect.metadata_ids || version >= Version::V5;
                return execute(body, version, with_id, asked);
            }
            Opcode::Query => {
                let text = body.long_string()?;
                let mut params = QueryParams { page_info, rate_limit_info, ..Default::default() };
                read_params(&mut body, version, &mut params, &mut keyspace)?;
                Request::Query { text, params, keyspace }
            }
            Opcode::Batch => {
                let mut batch = batch(&mut body, version, &mut keyspace)?;
                batch.params.rate_limit_info = rate_limit_info;
                Request::Batch { batch, keyspace }
            }
            Opcode::Prepare => {
                let text = body.long_string()?;
                Request::Prepare { text, keyspace: keyspace_of_prepare(&mut body, version)? }
            }
            Opcode::Startup => Request::Startup { options: body.string_map()? },
            Opcode::Options => Request::Options,
            Opcode::Register => Request::Register(register(&mut body)?),
            Opcode::AuthResponse => Request::AuthResponse(body.bytes()?),
            other => return Err(Error::Protocol(format!("{} is not a request", other.name()))),
        })
    }
}

/// Decodes EXECUTE, in place, because the values of a request are moved at a cost. `asked`: for the
/// custom payloads about the page and the rate limit.
fn execute(mut body: Body, version: Version, with_metadata_id: bool, asked: [bool; 2]) -> Result<Request, Error> {
    let mut decoded = Ok(Request::Execute { id: [0; 16], metadata_id: None, params: QueryParams::default() });
    if let Ok(Request::Execute { id, metadata_id, params }) = &mut decoded {
        [params.page_info, params.rate_limit_info] = asked;
        let mut read = || {
            *id = body.statement_id()?;
            *metadata_id = if with_metadata_id { Some(body.metadata_id()?) } else { None };
            // The keyspace in the parameters is ignored: a prepared statement keeps the keyspace in
            // which it was prepared.
            read_params(&mut body, version, params, &mut None)
        };
        if let Err(error) = read() {
            decoded = Err(error);
        }
    }
    decoded
}

#[cold]
fn unknown_consistency(code: u16) -> Error {
    Error::Protocol(format!("Unknown code {code} for a consistency level"))
}

#[inline]
fn consistency(body: &mut Body) -> Result<Consistency, Error> {
    let code = body.short()?;
    Consistency::from_code(code).ok_or_else(|| unknown_consistency(code))
}

/// Reads values in place: these are the largest part of a request, and are not moved.
fn read_positional(body: &mut Body, version: Version, values: &mut SmallVec<[BoundValue; 8]>) -> Result<(), Error> {
    let count = body.count(4)?;
    values.reserve(count);
    for _ in 0..count {
        values.push(body.value(version)?);
    }
    Ok(())
}

fn positional(body: &mut Body, version: Version) -> Result<BoundValues, Error> {
    let mut values = SmallVec::new();
    read_positional(body, version, &mut values)?;
    Ok(BoundValues::Positional(values))
}

fn named(body: &mut Body, version: Version) -> Result<BoundValues, Error> {
    let count = body.count(6)?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let name = body.string()?.to_owned();
        values.push((name, body.value(version)?));
    }
    Ok(BoundValues::Named(values))
}

fn timestamp(body: &mut Body) -> Result<i64, Error> {
    match body.long()? {
        i64::MIN => Err(Error::Protocol(format!(
            "Out of bound timestamp, must be in [{}, {}] (got {})",
            i64::MIN + 1,
            i64::MAX,
            i64::MIN
        ))),
        micros => Ok(micros),
    }
}

/// Reads the flags of a request of this kind. Flags other than `known` are an error.
#[inline]
fn flags(body: &mut Body, version: Version, known: u32, kind: &str) -> Result<u32, Error> {
    let (flags, known) = if version >= Version::V5 {
        (body.int()? as u32, known)
    } else {
        (body.byte()?.into(), known & !param::SINCE_V5)
    };
    if flags & !known != 0 {
        return Err(Error::Protocol(format!("Unknown {kind} flags 0x{flags:02x} in protocol version {version}")));
    }
    Ok(flags)
}

/// Reads the parameters of a query into default ones.
fn read_params(
    body: &mut Body,
    version: Version,
    params: &mut QueryParams,
    keyspace: &mut Option<Box<str>>,
) -> Result<(), Error> {
    params.consistency = consistency(body)?;
    let flags = flags(body, version, param::ALL, "query")?;
    params.skip_metadata = flags & param::SKIP_METADATA != 0;
    if flags & param::VALUES != 0 {
        match &mut params.values {
            BoundValues::Positional(values) if flags & param::NAMES == 0 => read_positional(body, version, values)?,
            values => *values = named(body, version)?,
        }
    }
    if flags & param::PAGE_SIZE != 0 {
        params.page_size = Some(body.int()?);
    }
    if flags & param::PAGING_STATE != 0 {
        params.paging_state = body.bytes()?;
    }
    last_params(body, flags, params, keyspace)
}

/// Reads the parameters that queries and batches share.
#[inline]
fn last_params(
    body: &mut Body,
    flags: u32,
    params: &mut QueryParams,
    keyspace: &mut Option<Box<str>>,
) -> Result<(), Error> {
    if flags & param::SERIAL_CONSISTENCY != 0 {
        params.serial_consistency = Some(consistency(body)?);
    }
    if flags & param::TIMESTAMP != 0 {
        params.timestamp = Some(timestamp(body)?);
    }
    if flags & param::KEYSPACE != 0 {
        *keyspace = Some(body.string()?.into());
    }
    if flags & param::NOW != 0 {
        params.now_in_seconds = Some(body.int()?);
    }
    Ok(())
}

fn keyspace_of_prepare(body: &mut Body, version: Version) -> Result<Option<Box<str>>, Error> {
    if version < Version::V5 {
        return Ok(None);
    }
    match body.int()? {
        0 => Ok(None),
        PREPARE_KEYSPACE => Ok(Some(body.string()?.into())),
        flags => Err(Error::Protocol(format!("Unknown prepare flags 0x{flags:02x} in protocol version {version}"))),
    }
}

fn batch(body: &mut Body, version: Version, keyspace: &mut Option<Box<str>>) -> Result<Batch, Error> {
    let kind = match body.byte()? {
        0 => BatchKind::Logged,
        1 => BatchKind::Unlogged,
        2 => BatchKind::Counter,
        other => return Err(Error::Protocol(format!("Invalid batch type {other}"))),
    };
    let count = body.count(7)?;
    let mut statements = Vec::with_capacity(count);
    for _ in 0..count {
        statements.push(match body.byte()? {
            0 => {
                let text = body.long_string()?;
                BatchStatement::Query(text.as_str().to_owned(), positional(body, version)?)
            }
            1 => {
                let id = body.statement_id()?;
                BatchStatement::Prepared(id, positional(body, version)?)
            }
            other => return Err(Error::Protocol(format!("Invalid kind {other} of a statement in a batch"))),
        });
    }
    let mut params = QueryParams { consistency: consistency(body)?, ..Default::default() };
    let known = param::SERIAL_CONSISTENCY | param::TIMESTAMP | param::NAMES | param::SINCE_V5;
    let flags = flags(body, version, known, "batch")?;
    if flags & param::NAMES != 0 {
        return Err(Error::Protocol("Named values are not supported in batches".to_owned()));
    }
    last_params(body, flags, &mut params, keyspace)?;
    Ok(Batch { kind, statements, params })
}

fn register(body: &mut Body) -> Result<EventKinds, Error> {
    let mut kinds = EventKinds::default();
    for name in body.string_list()? {
        let kind = EventKind::from_name(&name)
            .ok_or_else(|| Error::Protocol(format!("Invalid value '{name}' for an event type")))?;
        kinds.add(kind);
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests;
