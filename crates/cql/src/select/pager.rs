//! The paging states of a SELECT: their binding to the statement, and the part that the query
//! processor adds to the coordinator's part.
//!
//! A query with a single page runs none of this: the hash of the statement is computed when a
//! paging state is received or sent.

use super::{Select, Shape, group};
use crate::error::Error;
use crate::request::{Request, read_error};
use crate::term::Env;
use bytes::Bytes;
use coordinator::{Binding, PagingState, StatementHash};
use sha2::{Digest, Sha256};
use std::cell::OnceCell;

/// Opens and seals the paging states of one request.
pub struct Pager<'a> {
    select: &'a Select,
    env: Env<'a>,
    request: &'a Request<'a>,
    /// Whether there are LIMIT and PER PARTITION LIMIT. Their values are not part of the binding;
    /// the state has the numbers of rows left.
    limited: [bool; 2],
    binding: OnceCell<Binding>,
}

impl<'a> Pager<'a> {
    /// The pager of a request.
    pub fn new(select: &'a Select, env: Env<'a>, request: &'a Request<'a>, limited: [bool; 2]) -> Self {
        Pager { select, env, request, limited, binding: OnceCell::new() }
    }

    /// The environment in which terms are evaluated.
    pub fn env(&self) -> Env<'a> {
        self.env
    }

    fn binding(&self) -> Result<&Binding, Error> {
        if let Some(binding) = self.binding.get() {
            return Ok(binding);
        }
        let table = self.select.schema.id;
        let role = self.request.client.role.borrow().clone();
        let statement = self.select.hash(self.env, self.limited)?;
        Ok(self.binding.get_or_init(|| Binding { table, role, statement }))
    }

    /// The state that the client sent, if any. Refused unless it belongs to this query.
    pub async fn open(&self) -> Result<Option<Box<PagingState>>, Error> {
        let Some(bytes) = &self.request.params.paging_state else { return Ok(None) };
        let trace = self.request.trace.as_deref();
        let state = self.request.coordinator.open_state(bytes, self.binding()?, trace).await;
        state.map(|state| Some(Box::new(state))).map_err(|error| read_error(error, &self.select.schema))
    }

    /// Encodes and authenticates a state for the client.
    pub fn seal(&self, state: &PagingState) -> Result<Bytes, Error> {
        Ok(self.request.coordinator.seal_state(state, self.binding()?))
    }
}

impl Select {
    /// A hash of everything that decides which rows are read and in which order. Columns that are
    /// only selected are not part of it.
    fn hash(&self, env: Env<'_>, limited: [bool; 2]) -> Result<StatementHash, Error> {
        let flags = [
            self.reversed,
            self.output.distinct,
            limited[0],
            limited[1],
            matches!(self.shape, Shape::Aggregate(..)),
            !self.sort.is_empty(),
        ];
        let mut hash = Sha256::new();
        hash.update(flags.map(u8::from));
        if let Some(grouping) = &self.grouping {
            for slot in &grouping.slots {
                hash.update(group::code(self.output.columns[*slot]));
            }
        }
        hash.update(self.restrictions.canonical(env)?);
        Ok(StatementHash(hash.finalize().into()))
    }
}

/// How much of its limits a filtered or grouped query has used. The query processor adds this to
/// the coordinator's state. For a grouped query, groups are counted instead of rows.
///
/// ```text
/// u8 'F', u64 remaining rows, u64 rows returned of the last partition,
/// values of that partition's key
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilteredState {
    /// The rows that may still be returned.
    pub remaining: u64,
    /// The encoded key of the last row's partition, and how many rows of it were returned.
    pub partition: (Vec<u8>, u64),
}

const FILTERED: u8 = b'F';

impl FilteredState {
    /// Encodes it.
    pub fn encode(&self) -> Bytes {
        let (key, rows) = &self.partition;
        let mut out = Vec::with_capacity(17 + key.len());
        out.push(FILTERED);
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&rows.to_le_bytes());
        out.extend_from_slice(key);
        out.into()
    }

    /// Decodes it. `None` if the bytes are invalid.
    pub fn decode(bytes: &Bytes) -> Option<FilteredState> {
        let (&tag, rest) = bytes.split_first()?;
        let (remaining, rest) = rest.split_first_chunk::<8>()?;
        let (rows, key) = rest.split_first_chunk::<8>()?;
        let remaining = u64::from_le_bytes(*remaining);
        (tag == FILTERED && remaining > 0)
            .then(|| FilteredState { remaining, partition: (key.to_vec(), u64::from_le_bytes(*rows)) })
    }
}

/// The paging state of a virtual table: how many rows earlier pages returned.
///
/// ```text
/// u8 'V', u64 rows
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtualState(pub u64);

const VIRTUAL: u8 = b'V';

impl VirtualState {
    /// Encodes it.
    pub fn encode(self) -> Bytes {
        let mut out = vec![VIRTUAL];
        out.extend_from_slice(&self.0.to_le_bytes());
        out.into()
    }

    /// Decodes it. `None` if the bytes are invalid.
    pub fn decode(bytes: &Bytes) -> Option<VirtualState> {
        let (&tag, rest) = bytes.split_first()?;
        let rows = u64::from_le_bytes(rest.try_into().ok()?);
        (tag == VIRTUAL).then_some(VirtualState(rows))
    }
}

/// The protocol error for an authentic paging state that does not fit this query.
pub(super) fn bad_state() -> Error {
    Error::Protocol("Invalid value for the paging state".to_owned())
}

/// Runs both decoders, for the fuzzer.
pub fn fuzz_states(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Some(state) = FilteredState::decode(&bytes) {
        assert_eq!(FilteredState::decode(&state.encode()), Some(state));
    }
    if let Some(state) = VirtualState::decode(&bytes) {
        assert_eq!(VirtualState::decode(&state.encode()), Some(state));
    }
}
