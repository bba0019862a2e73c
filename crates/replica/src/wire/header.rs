//! The headers of requests and responses between shards and between nodes.
//!
//! A header is a list of fields, each `u8 tag, u32 length, bytes`, in the order of their tags,
//! ended by tag 0. A reader skips an unknown field. If its tag is [`REQUIRED`] or higher, the
//! reader refuses the message, because it would misinterpret it. So a later release adds fields
//! without a new version of the wire form.

use super::codec::{Reader, Writer};
use crate::large_data::LargeKinds;
use crate::request::{Class, Context, RateLimitMode};
use crate::trace::TraceEvent;
use rt::sync::{Cancel, Deadline};
use rt::time::Duration;
use std::rc::Rc;
use uuid::Uuid;

/// Fields with this tag or a higher one must be known to the reader.
pub const REQUIRED: u8 = 128;

/// Ends a header.
const END: u8 = 0;

/// The trace session: 16 bytes.
const TRACE: u8 = 1;
/// The write is checked against the large-data guardrails: no bytes.
const CHECKS_LARGE_DATA: u8 = 2;
/// How the replica applies rate limits. No bytes: it only counts. One byte of 1: it only charges
/// bytes. 4 bytes: it decides by this random number. Without this field it does neither.
const RATE_LIMIT: u8 = 3;
/// The value of [`RATE_LIMIT`] if the replica only charges bytes.
const CHARGE_ONLY: u8 = 1;
/// The request belongs to an operation that was accepted: nothing counts or refuses it. No bytes.
const EXEMPT: u8 = 16;
/// The class of work: one byte, see [`Class`].
const CLASS: u8 = REQUIRED + 1;
/// Microseconds until the coordinator stops waiting: 8 bytes.
const TIME_LEFT: u8 = REQUIRED + 2;
/// The number of the metadata that routed the request: 8 bytes.
const METADATA: u8 = REQUIRED + 3;

/// The events of a traced request: `u32 count`, then for each `u32 microseconds, u16 shard, text`.
const EVENTS: u8 = 1;
/// The kinds of data whose soft limits a write exceeds: one byte, see [`LargeKinds`].
const LARGE_DATA: u8 = 2;

/// The header of a request; see [`Context`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The class of work.
    pub class: Class,
    /// Microseconds until the coordinator stops waiting.
    pub time_left_micros: u64,
    /// The trace session, if the request is traced.
    pub trace: Option<Uuid>,
    /// The coordinator's metadata number.
    pub metadata_number: u64,
    /// Whether the write is checked against the large-data guardrails.
    pub checks_large_data: bool,
    /// How the replica applies rate limits. `Counted` is sent as `CountOnly`, and `Deferred` as
    /// `Enforce`: only the coordinator's own shard has counted the request.
    pub rate_limit: RateLimitMode,
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
            rate_limit: context.rate_limit,
        }
    }

    /// The context of the request on the replica.
    pub(super) fn context(&self) -> Context {
        Context {
            class: self.class,
            deadline: Deadline::after(Duration::from_micros(self.time_left_micros)),
            cancel: Cancel::new(),
            trace: self.trace.map(|id| Rc::new(crate::trace::Trace::new(id))),
            metadata_number: self.metadata_number,
            large_data: self.checks_large_data.then(Rc::default),
            rate_limit: self.rate_limit,
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if let Some(trace) = &self.trace {
            field(out, TRACE, trace.as_bytes());
        }
        if self.checks_large_data {
            field(out, CHECKS_LARGE_DATA, &[]);
        }
        match self.rate_limit {
            RateLimitMode::Off => {}
            RateLimitMode::Exempt => field(out, EXEMPT, &[]),
            RateLimitMode::Counted | RateLimitMode::CountOnly => field(out, RATE_LIMIT, &[]),
            RateLimitMode::ChargeOnly => field(out, RATE_LIMIT, &[CHARGE_ONLY]),
            RateLimitMode::Enforce { draw } | RateLimitMode::Deferred { draw } => {
                field(out, RATE_LIMIT, &draw.to_le_bytes());
            }
        }
        field(out, CLASS, &[self.class as u8]);
        field(out, TIME_LEFT, &self.time_left_micros.to_le_bytes());
        field(out, METADATA, &self.metadata_number.to_le_bytes());
        out.u8(END);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Header> {
        let (mut trace, mut checks_large_data, mut rate_limit) = (None, false, RateLimitMode::Off);
        let (mut class, mut time_left_micros, mut metadata_number) = (None, None, None);
        while let Some((tag, value)) = next_field(reader)? {
            match tag {
                TRACE => trace = Some(Uuid::from_slice(value).ok()?),
                CHECKS_LARGE_DATA => checks_large_data = true,
                RATE_LIMIT if value.is_empty() => rate_limit = RateLimitMode::CountOnly,
                RATE_LIMIT if *value == [CHARGE_ONLY] => rate_limit = RateLimitMode::ChargeOnly,
                RATE_LIMIT => rate_limit = RateLimitMode::Enforce { draw: u32::from_le_bytes(value.try_into().ok()?) },
                EXEMPT => rate_limit = RateLimitMode::Exempt,
                CLASS => class = Some(Class::from_code(*value.first()?)?),
                TIME_LEFT => time_left_micros = Some(u64::from_le_bytes(value.try_into().ok()?)),
                METADATA => metadata_number = Some(u64::from_le_bytes(value.try_into().ok()?)),
                REQUIRED.. => return None,
                _ => {}
            }
        }
        Some(Header {
            class: class?,
            time_left_micros: time_left_micros?,
            trace,
            metadata_number: metadata_number?,
            checks_large_data,
            rate_limit,
        })
    }
}

/// The header of a response.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Report {
    /// The trace events of the replica, if the request was traced.
    pub events: Vec<TraceEvent>,
    /// The kinds of data whose soft limits the write exceeds, if it was checked.
    pub large_data: LargeKinds,
}

impl Report {
    pub fn write(&self, out: &mut Writer) {
        if !self.events.is_empty() {
            let mut steps = Writer::plain();
            steps.list(&self.events, |out, event| {
                out.u32(event.elapsed_micros);
                out.u16(event.shard);
                out.bytes(event.activity.as_bytes());
            });
            field(out, EVENTS, &steps.into_bytes());
        }
        if !self.large_data.is_empty() {
            field(out, LARGE_DATA, &[self.large_data.bits()]);
        }
        out.u8(END);
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Report> {
        let mut report = Report::default();
        while let Some((tag, value)) = next_field(reader)? {
            match tag {
                EVENTS => {
                    let value = bytes::Bytes::copy_from_slice(value);
                    let mut steps = Reader::plain(&value);
                    report.events = steps.list(|reader| {
                        let (elapsed_micros, shard, activity) = (reader.u32()?, reader.u16()?, reader.text()?);
                        Some(TraceEvent { elapsed_micros, node: None, shard, activity })
                    })?;
                }
                LARGE_DATA => report.large_data = LargeKinds::from_bits(*value.first()?),
                REQUIRED.. => return None,
                _ => {}
            }
        }
        Some(report)
    }
}

fn field(out: &mut Writer, tag: u8, value: &[u8]) {
    out.u8(tag);
    out.bytes(value);
}

/// The next field; `Some(None)`: the header ends.
#[allow(clippy::option_option)]
fn next_field<'a>(reader: &mut Reader<'a>) -> Option<Option<(u8, &'a [u8])>> {
    match reader.u8()? {
        END => Some(None),
        tag => {
            let len = reader.u32()? as usize;
            Some(Some((tag, reader.slice(len)?)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::slice::from_ref;

    fn header() -> Header {
        Header {
            class: Class::User,
            time_left_micros: 5_000_000,
            trace: Some(Uuid::from_u128(7)),
            metadata_number: 42,
            checks_large_data: true,
            rate_limit: RateLimitMode::Enforce { draw: 0x0403_0201 },
        }
    }

    fn bytes_of(write: impl FnOnce(&mut Writer)) -> Bytes {
        let mut out = Writer::framed(1);
        write(&mut out);
        out.finish().join()
    }

    fn read(bytes: &Bytes) -> Option<Header> {
        Header::read(&mut Reader::framed(from_ref(bytes), 1)?)
    }

    #[test]
    fn headers_round_trip() {
        let plain = Header { trace: None, checks_large_data: false, rate_limit: RateLimitMode::Off, ..header() };
        let counting = Header { rate_limit: RateLimitMode::CountOnly, ..header() };
        let charging = Header { rate_limit: RateLimitMode::ChargeOnly, ..header() };
        let exempt = Header { rate_limit: RateLimitMode::Exempt, ..header() };
        for header in [header(), plain, counting.clone(), charging, exempt] {
            assert_eq!(read(&bytes_of(|out| header.write(out))), Some(header));
        }
        let counted = Header { rate_limit: RateLimitMode::Counted, ..header() };
        assert_eq!(read(&bytes_of(|out| counted.write(out))), Some(counting), "others have not counted it");
        let deferred = Header { rate_limit: RateLimitMode::Deferred { draw: 0x0403_0201 }, ..header() };
        assert_eq!(read(&bytes_of(|out| deferred.write(out))), Some(header()), "others have not counted it");
    }

    #[test]
    fn a_rate_limit_field_of_another_length_is_refused() {
        for len in (1..40).filter(|len| *len != 4) {
            let bytes = bytes_of(|out| {
                field(out, RATE_LIMIT, &vec![7; len]);
                Header { rate_limit: RateLimitMode::Off, ..header() }.write(out);
            });
            assert_eq!(read(&bytes), None, "{len}");
        }
    }

    #[test]
    fn unknown_fields_are_skipped_unless_they_are_required() {
        let with = |tag: u8| {
            bytes_of(|out| {
                field(out, tag, b"something new");
                header().write(out);
            })
        };
        assert_eq!(read(&with(REQUIRED - 1)), Some(header()));
        assert_eq!(read(&with(REQUIRED)), None);
        assert_eq!(read(&with(u8::MAX)), None);
    }

    #[test]
    fn a_header_without_a_required_field_is_refused() {
        for missing in [CLASS, TIME_LEFT, METADATA] {
            let bytes = bytes_of(|out| {
                for tag in [CLASS, TIME_LEFT, METADATA].into_iter().filter(|tag| *tag != missing) {
                    field(out, tag, if tag == CLASS { &[0] } else { &[0; 8] });
                }
                out.u8(END);
            });
            assert_eq!(read(&bytes), None, "without {missing}");
        }
    }
}
