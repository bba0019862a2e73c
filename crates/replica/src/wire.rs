//! The wire form of requests and responses: `u8 version, u32 length, body`, append-only (a reader skips what it does not know
//! at the end of a body). Used between shards of a node and between nodes alike.
//!
//! All numbers are little-endian; bytes are `u32 length, bytes`. A request is `header, u8 kind, fields`; see the functions.

mod codec;
pub(crate) mod command;
mod parts;
mod pieces;
mod serve;

use crate::digest::Digest;
use crate::error::ReplicaError;
use crate::fragments::FragmentPage;
use crate::large_data::LargeKinds;
use crate::page::Page;
use crate::request::{Class, Context, ReadCommand};
use crate::trace::TraceEvent;
use bytes::Bytes;
use codec::{Reader, Writer};
use model::TableId;
use model::mutation::Mutation;
use model::row::Malformed;
use std::net::IpAddr;
use std::slice::from_ref;
use uuid::Uuid;

pub use pieces::Pieces;

/// The version of requests and responses that this release writes; it reads this one.
pub const VERSION: u8 = 1;

/// What stands behind a write that is checked against the large-data guardrails.
const CHECKS_LARGE_DATA: u8 = 1;

/// What a shard is asked.
#[derive(Debug)]
pub enum Request {
    /// A page.
    Read(ReadCommand),
    /// A write of one mutation.
    Write(Mutation),
    /// A write of several that share one log record.
    WriteGroup(Vec<Mutation>),
    /// A write to counters: its live cells are updates. Answered with the new state.
    Count(Mutation),
    /// What a page comes to, without its rows.
    Digest(ReadCommand),
    /// A page, and what it comes to.
    ReadAndDigest(ReadCommand),
    /// The data behind a page, for reconciliation.
    Fragments(ReadCommand),
}

impl Request {
    /// Whether it writes.
    fn is_write(&self) -> bool {
        matches!(self, Request::Write(_) | Request::WriteGroup(_) | Request::Count(_))
    }

    /// The tables that it is for, some of them more than once.
    pub(crate) fn tables(&self) -> Vec<TableId> {
        match self {
            Request::Read(read) | Request::Digest(read) | Request::ReadAndDigest(read) | Request::Fragments(read) => {
                vec![read.table]
            }
            Request::Write(mutation) | Request::Count(mutation) => vec![mutation.table()],
            Request::WriteGroup(mutations) => mutations.iter().map(Mutation::table).collect(),
        }
    }
}

/// What goes with it on the wire: see [`Context`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose work it is.
    pub class: Class,
    /// Microseconds left until nobody waits any more.
    pub time_left_micros: u64,
    /// The trace session, if it is traced.
    pub trace: Option<Uuid>,
    /// The coordinator's metadata number.
    pub metadata_number: u64,
    /// Whether the write is checked against the large-data guardrails. It stands behind the request: releases that do not know
    /// it skip it.
    pub checks_large_data: bool,
}

impl Header {
    /// The header of a request with this context.
    pub fn of(context: &Context) -> Header {
        Header {
            class: context.class,
            time_left_micros: context.deadline.remaining().as_micros() as u64,
            trace: context.trace.as_ref().map(|trace| trace.id),
            metadata_number: context.metadata_number,
            checks_large_data: context.large_data.is_some(),
        }
    }
}

/// A replica's answer.
#[derive(Debug, PartialEq)]
pub struct Response {
    /// The page or the acknowledgement, or why there is none.
    pub result: Result<Answer, ReplicaError>,
    /// The steps recorded there, if the request was traced.
    pub events: Vec<TraceEvent>,
    /// What a write exceeds the soft limits of, if it was checked.
    pub large_data: LargeKinds,
}

impl Response {
    /// An answer without steps.
    pub fn new(result: Result<Answer, ReplicaError>) -> Response {
        Response { result, events: Vec::new(), large_data: LargeKinds::default() }
    }

    /// Adds what was recorded there to a request's trace, which sent it after so many microseconds, and to what it found to be large.
    pub fn report_to(&mut self, context: &Context, sent_after: Option<u32>, node: Option<IpAddr>) {
        if let (Some(trace), Some(sent_after)) = (&context.trace, sent_after) {
            trace.absorb(sent_after, node, std::mem::take(&mut self.events));
        }
        if let Some(found) = &context.large_data {
            found.set(found.get().with(self.large_data));
        }
    }
}

/// What was asked for.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// A page.
    Page(Page),
    /// The write is done.
    Written,
    /// A page, without its rows if only its digest was asked for, and what it comes to.
    Digested(Page, Digest),
    /// Data for reconciliation.
    Fragments(FragmentPage),
    /// Counted: the new state.
    Counted(Mutation),
}

/// Encodes a request.
pub fn encode_request(header: &Header, request: &Request) -> Bytes {
    let mut out = Writer::framed(VERSION);
    out.u8(header.class as u8);
    out.u64(header.time_left_micros);
    out.option(header.trace.as_ref(), |out, id| out.raw(id.as_bytes()));
    out.u64(header.metadata_number);
    match request {
        Request::Read(read) => {
            out.u8(0);
            command::write(read, &mut out);
        }
        Request::Write(mutation) => {
            out.u8(1);
            out.bytes(mutation.as_bytes());
        }
        Request::WriteGroup(mutations) => {
            out.u8(2);
            out.u32(mutations.len() as u32);
            mutations.iter().for_each(|mutation| out.bytes(mutation.as_bytes()));
        }
        Request::Count(mutation) => {
            out.u8(3);
            out.bytes(mutation.as_bytes());
        }
        Request::Digest(read) => {
            out.u8(4);
            command::write(read, &mut out);
        }
        Request::ReadAndDigest(read) => {
            out.u8(5);
            command::write(read, &mut out);
        }
        Request::Fragments(read) => {
            out.u8(6);
            command::write(read, &mut out);
        }
    }
    if header.checks_large_data && request.is_write() {
        out.u8(CHECKS_LARGE_DATA);
    }
    out.finish().join()
}

/// The header of a request, without the rest.
pub fn header_of(bytes: &Bytes) -> Result<Header, Malformed> {
    let header = Reader::framed(from_ref(bytes), VERSION).and_then(|mut reader| read_header(&mut reader));
    header.ok_or(Malformed("request"))
}

fn read_header(reader: &mut Reader<'_>) -> Option<Header> {
    Some(Header {
        class: Class::from_code(reader.u8()?)?,
        time_left_micros: reader.u64()?,
        trace: reader.option(|reader| reader.array().map(Uuid::from_bytes))?,
        metadata_number: reader.u64()?,
        checks_large_data: false,
    })
}

/// Decodes a request.
pub fn decode_request(bytes: Bytes) -> Result<(Header, Request), Malformed> {
    decode_request_inner(bytes).ok_or(Malformed("request"))
}

fn decode_request_inner(bytes: Bytes) -> Option<(Header, Request)> {
    let mut reader = Reader::framed(from_ref(&bytes), VERSION)?;
    let mut header = read_header(&mut reader)?;
    let request = match reader.u8()? {
        0 => Request::Read(command::read(&mut reader)?),
        1 => Request::Write(Mutation::parse(reader.bytes()?).ok()?),
        2 => {
            let count = reader.u32()?;
            Request::WriteGroup((0..count).map(|_| Mutation::parse(reader.bytes()?).ok()).collect::<Option<_>>()?)
        }
        3 => Request::Count(Mutation::parse(reader.bytes()?).ok()?),
        4 => Request::Digest(command::read(&mut reader)?),
        5 => Request::ReadAndDigest(command::read(&mut reader)?),
        6 => Request::Fragments(command::read(&mut reader)?),
        _ => return None,
    };
    if request.is_write() && !reader.is_at_end() {
        header.checks_large_data = reader.u8()? == CHECKS_LARGE_DATA;
    }
    Some((header, request))
}

/// Encodes a response. The rows of a large page stay where they are.
pub fn encode_response(response: &Response) -> Pieces {
    let mut out = Writer::framed(VERSION);
    match &response.result {
        Ok(Answer::Page(page)) => {
            out.u8(0);
            command::write_page(page, &mut out);
        }
        Ok(Answer::Written) => out.u8(1),
        Ok(Answer::Digested(page, digest)) => {
            out.u8(3);
            out.u8(digest.version);
            out.raw(&digest.hash);
            command::write_page(page, &mut out);
        }
        Ok(Answer::Fragments(part)) => {
            out.u8(4);
            parts::write(part, &mut out);
        }
        Ok(Answer::Counted(state)) => {
            out.u8(5);
            out.bytes(state.as_bytes());
        }
        Err(error) => {
            out.u8(2);
            out.u8(error.code());
            out.bytes(error.to_string().as_bytes());
        }
    }
    out.u32(response.events.len() as u32);
    for event in &response.events {
        out.u32(event.elapsed_micros);
        out.u16(event.shard);
        out.bytes(event.activity.as_bytes());
    }
    if !response.large_data.is_empty() {
        out.u8(response.large_data.bits());
    }
    out.finish()
}

/// Decodes a response, whose pieces may be others than those that it was encoded to.
pub fn decode_response(pieces: impl Into<Pieces>) -> Result<Response, Malformed> {
    decode_response_inner(&pieces.into()).ok_or(Malformed("response"))
}

fn decode_response_inner(pieces: &Pieces) -> Option<Response> {
    let mut reader = Reader::framed(&pieces.0, VERSION)?;
    let result = match reader.u8()? {
        0 => Ok(Answer::Page(command::read_page(&mut reader)?)),
        1 => Ok(Answer::Written),
        2 => Err(ReplicaError::from_code(reader.u8()?, reader.text()?)),
        3 => {
            let digest = Digest { version: reader.u8()?, hash: reader.array()? };
            Ok(Answer::Digested(command::read_page(&mut reader)?, digest))
        }
        4 => Ok(Answer::Fragments(parts::read(&mut reader)?)),
        5 => Ok(Answer::Counted(Mutation::parse(reader.bytes()?).ok()?)),
        _ => return None,
    };
    let count = reader.u32()?;
    let events = (0..count)
        .map(|_| {
            let (elapsed_micros, shard, activity) = (reader.u32()?, reader.u16()?, reader.text()?);
            Some(TraceEvent { elapsed_micros, node: None, shard, activity })
        })
        .collect::<Option<_>>()?;
    let large_data = if reader.is_at_end() { LargeKinds::default() } else { LargeKinds::from_bits(reader.u8()?) };
    Some(Response { result, events, large_data })
}
