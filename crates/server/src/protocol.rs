//! The native protocol, versions 3 to 5, as pure functions over bytes.
//!
//! Reading order: [`frames`] splits the input into frames (in version 5, out of [`segment`]s).
//! [`compression`] compresses and decompresses bodies. [`request`] decodes requests (with
//! [`body`]). [`outbox`] collects answers (with [`result`], [`error`], [`event`] and [`write`]).
//!
//! Invariant: no input panics, and no memory is allocated for a claimed length before it is checked
//! against the available bytes or a limit. Nothing here reads a clock, waits, or accesses a socket.

pub mod body;
pub mod compression;
pub mod error;
pub mod event;
pub mod frames;
pub mod fuzz;
pub mod outbox;
pub mod request;
pub mod result;
pub mod segment;
pub mod write;

pub use compression::Compression;
pub use event::{Event, EventKinds};
pub use frames::{Frames, Next, RawFrame, SESSION_BODY};
pub use fuzz::fuzz_frame;
pub use outbox::{Outbox, Reply};
pub use request::{Dialect, Request};

use std::fmt;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 9;

/// A supported protocol version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Version {
    V3 = 3,
    V4 = 4,
    V5 = 5,
}

impl Version {
    /// All supported versions.
    pub const ALL: [Version; 3] = [Version::V3, Version::V4, Version::V5];

    /// The version with this number, if supported.
    pub fn from_number(number: u8) -> Option<Version> {
        match number {
            3 => Some(Version::V3),
            4 => Some(Version::V4),
            5 => Some(Version::V5),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/v{}", *self as u8, *self as u8)
    }
}

/// Bits of a frame's flags byte.
pub mod flag {
    /// The body is compressed. Ignored in version 5.
    pub const COMPRESSION: u8 = 0x01;
    /// In requests: trace the request. In answers: the body begins with the trace's id.
    pub const TRACING: u8 = 0x02;
    /// The body has a custom payload.
    pub const CUSTOM_PAYLOAD: u8 = 0x04;
    /// The body has warnings.
    pub const WARNING: u8 = 0x08;
}

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Opcode {
    Error = 0x00,
    Startup = 0x01,
    Ready = 0x02,
    Authenticate = 0x03,
    Options = 0x05,
    Supported = 0x06,
    Query = 0x07,
    Result = 0x08,
    Prepare = 0x09,
    Execute = 0x0A,
    Register = 0x0B,
    Event = 0x0C,
    Batch = 0x0D,
    AuthChallenge = 0x0E,
    AuthResponse = 0x0F,
    AuthSuccess = 0x10,
}

impl Opcode {
    /// The opcodes of all requests, in the order of the metrics.
    pub const REQUESTS: [Opcode; 8] = [
        Opcode::Startup,
        Opcode::Options,
        Opcode::Query,
        Opcode::Prepare,
        Opcode::Execute,
        Opcode::Register,
        Opcode::Batch,
        Opcode::AuthResponse,
    ];

    /// The request opcode with this number.
    pub fn request_from_number(number: u8) -> Option<Opcode> {
        Some(match number {
            0x01 => Opcode::Startup,
            0x05 => Opcode::Options,
            0x07 => Opcode::Query,
            0x09 => Opcode::Prepare,
            0x0A => Opcode::Execute,
            0x0B => Opcode::Register,
            0x0D => Opcode::Batch,
            0x0F => Opcode::AuthResponse,
            _ => return None,
        })
    }

    /// Whether the request carries a statement. Other requests are about the connection itself.
    pub fn is_statement(self) -> bool {
        matches!(self, Opcode::Query | Opcode::Prepare | Opcode::Execute | Opcode::Batch)
    }

    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Opcode::Error => "ERROR",
            Opcode::Startup => "STARTUP",
            Opcode::Ready => "READY",
            Opcode::Authenticate => "AUTHENTICATE",
            Opcode::Options => "OPTIONS",
            Opcode::Supported => "SUPPORTED",
            Opcode::Query => "QUERY",
            Opcode::Result => "RESULT",
            Opcode::Prepare => "PREPARE",
            Opcode::Execute => "EXECUTE",
            Opcode::Register => "REGISTER",
            Opcode::Event => "EVENT",
            Opcode::Batch => "BATCH",
            Opcode::AuthChallenge => "AUTH_CHALLENGE",
            Opcode::AuthResponse => "AUTH_RESPONSE",
            Opcode::AuthSuccess => "AUTH_SUCCESS",
        }
    }
}
