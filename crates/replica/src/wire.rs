//! The wire form of requests and responses: `u8 version, u32 length, header, u8 kind, body`. It is
//! used between shards of a node and between nodes.
//!
//! Reports about arrivals have a form of their own ([`arrivals`]).
//!
//! A header is extensible ([`header`]). Bodies are append-only: a reader skips unknown bytes at the
//! end of a body. All numbers are little-endian; byte strings are `u32 length, bytes`.

mod arrivals;
mod codec;
pub(crate) mod command;
mod error;
mod fragments;
#[cfg(test)]
mod golden_tests;
mod header;
mod serve;

use crate::digest::Digest;
use crate::error::ReplicaError;
use crate::large_data::LargeKinds;
use crate::request::{Context, KeyedMutation, ReplicaRequest, ReplicaResponse};
use crate::trace::TraceEvent;
use bytes::Bytes;
use codec::{Reader, Writer};
use header::Report;
use model::mutation::Mutation;
use model::row::Malformed;
use rt::Pieces;
use std::net::IpAddr;
use std::slice::from_ref;

pub use arrivals::{decode_arrivals, decode_others, encode_arrivals, encode_others};
pub use fragments::{decode_fragments, encode_fragments};
pub use header::Header;

/// The version of requests and responses that this release writes and reads.
pub const VERSION: u8 = 1;

/// A replica's response.
#[derive(Debug, PartialEq)]
pub struct Response {
    /// The answer, or the error.
    pub result: Result<ReplicaResponse, ReplicaError>,
    report: Report,
}

impl Response {
    /// A response without a report.
    pub fn new(result: Result<ReplicaResponse, ReplicaError>) -> Response {
        Response { result, report: Report::default() }
    }

    /// A response with the events and large-data kinds that the request's context recorded.
    fn reporting(result: Result<ReplicaResponse, ReplicaError>, context: &Context) -> Response {
        let events = context.trace.as_ref().map(|trace| trace.take_events()).unwrap_or_default();
        let large_data = context.large_data.as_ref().map(|found| found.get()).unwrap_or_default();
        Response { result, report: Report { events, large_data } }
    }

    /// Adds the replica's events to the request's trace, and its large-data kinds to the request's
    /// context. `sent_after`: microseconds from the start of the trace to the sending of the
    /// request.
    pub fn report_to(&mut self, context: &Context, sent_after: Option<u32>, node: Option<IpAddr>) {
        if let (Some(trace), Some(sent_after)) = (&context.trace, sent_after) {
            trace.absorb(sent_after, node, std::mem::take(&mut self.report.events));
        }
        if let Some(found) = &context.large_data {
            found.set(found.get().with(self.report.large_data));
        }
    }

    /// The trace events of the replica.
    pub fn events(&self) -> &[TraceEvent] {
        &self.report.events
    }

    /// The kinds of data whose soft limits the write exceeds.
    pub fn large_data(&self) -> LargeKinds {
        self.report.large_data
    }
}

/// Encodes a request.
pub fn encode_request(header: &Header, request: &ReplicaRequest) -> Bytes {
    let mut out = Writer::framed(VERSION);
    header.write(&mut out);
    match request {
        ReplicaRequest::Read(read) => {
            out.u8(0);
            command::write(read, &mut out);
        }
        ReplicaRequest::Write(mutations) => {
            out.u8(1);
            out.list(mutations, |out, (mutation, _)| out.bytes(mutation.as_bytes()));
        }
        ReplicaRequest::CounterUpdate((mutation, _)) => {
            out.u8(2);
            out.bytes(mutation.as_bytes());
        }
        ReplicaRequest::Digest(read) => {
            out.u8(3);
            command::write(read, &mut out);
        }
        ReplicaRequest::ReadAndDigest(read) => {
            out.u8(4);
            command::write(read, &mut out);
        }
        ReplicaRequest::ReadFragments(read) => {
            out.u8(5);
            command::write(read, &mut out);
        }
    }
    out.finish().join()
}

/// The header of a request, without the rest.
pub fn header_of(bytes: &Bytes) -> Result<Header, Malformed> {
    let header = Reader::framed(from_ref(bytes), VERSION).and_then(|mut reader| Header::read(&mut reader));
    header.ok_or(Malformed("request"))
}

/// Decodes a request.
pub fn decode_request(bytes: &Bytes) -> Result<(Header, ReplicaRequest), Malformed> {
    decode_request_inner(bytes).ok_or(Malformed("request"))
}

fn decode_request_inner(bytes: &Bytes) -> Option<(Header, ReplicaRequest)> {
    let mut reader = Reader::framed(from_ref(bytes), VERSION)?;
    let header = Header::read(&mut reader)?;
    let request = match reader.u8()? {
        0 => ReplicaRequest::Read(command::read(&mut reader)?.into()),
        1 => ReplicaRequest::Write(reader.list(read_mutation)?.into()),
        2 => ReplicaRequest::CounterUpdate(read_mutation(&mut reader)?),
        3 => ReplicaRequest::Digest(command::read(&mut reader)?.into()),
        4 => ReplicaRequest::ReadAndDigest(command::read(&mut reader)?.into()),
        5 => ReplicaRequest::ReadFragments(command::read(&mut reader)?.into()),
        _ => return None,
    };
    Some((header, request))
}

fn read_mutation(reader: &mut Reader<'_>) -> Option<KeyedMutation> {
    let mutation = Mutation::parse(reader.bytes()?).ok()?;
    let key = mutation.decorated_key();
    Some((mutation, key))
}

/// Encodes a response. The rows of a large page are shared, not copied.
pub fn encode_response(response: &Response) -> Pieces {
    let mut out = Writer::framed(VERSION);
    response.report.write(&mut out);
    match &response.result {
        Ok(ReplicaResponse::Page(page)) => {
            out.u8(0);
            command::write_page(page, &mut out);
        }
        Ok(ReplicaResponse::Written) => out.u8(1),
        Err(error) => {
            out.u8(2);
            error::write(error, &mut out);
        }
        Ok(ReplicaResponse::Digested(page, digest)) => {
            out.u8(3);
            out.u8(digest.version);
            out.raw(&digest.hash);
            command::write_page(page, &mut out);
        }
        Ok(ReplicaResponse::Fragments(part)) => {
            out.u8(4);
            fragments::write(part, &mut out);
        }
        Ok(ReplicaResponse::CounterUpdated(state)) => {
            out.u8(5);
            out.bytes(state.as_bytes());
        }
    }
    out.finish()
}

/// Decodes a response. Its pieces may be cut differently than [`encode_response`] cut them, but
/// only between fields.
pub fn decode_response(pieces: impl Into<Pieces>) -> Result<Response, Malformed> {
    decode_response_inner(&pieces.into()).ok_or(Malformed("response"))
}

fn decode_response_inner(pieces: &Pieces) -> Option<Response> {
    let mut reader = Reader::framed(pieces.iter().as_slice(), VERSION)?;
    let report = Report::read(&mut reader)?;
    let result = match reader.u8()? {
        0 => Ok(ReplicaResponse::Page(command::read_page(&mut reader)?.into())),
        1 => Ok(ReplicaResponse::Written),
        2 => Err(error::read(&mut reader)?),
        3 => {
            let digest = Digest { version: reader.u8()?, hash: reader.array()? };
            Ok(ReplicaResponse::Digested(command::read_page(&mut reader)?.into(), digest))
        }
        4 => Ok(ReplicaResponse::Fragments(fragments::read(&mut reader)?.into())),
        5 => Ok(ReplicaResponse::CounterUpdated(Mutation::parse(reader.bytes()?).ok()?)),
        _ => return None,
    };
    Some(Response { result, report })
}
