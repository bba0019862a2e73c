//! The paging states of a SELECT: what binds them to the statement, and what the language adds to the coordinator's own.
//!
//! Nothing here runs for a query of one page: the hash of a statement is made when a state comes in or goes out.

use super::{Select, Shape, group};
use crate::error::Error;
use crate::request::{Request, read_error};
use crate::term::Env;
use bytes::Bytes;
use coordinator::{Binding, PagingState, StatementHash};
use sha2::{Digest, Sha256};
use std::cell::OnceCell;

/// The states of one request.
pub struct Pager<'a> {
    select: &'a Select,
    env: Env<'a>,
    request: &'a Request<'a>,
    /// Whether there are LIMIT and PER PARTITION LIMIT. How many rows they leave is in the state.
    limited: [bool; 2],
    binding: OnceCell<Binding>,
}

impl<'a> Pager<'a> {
    /// The pager of a request.
    pub fn new(select: &'a Select, env: Env<'a>, request: &'a Request<'a>, limited: [bool; 2]) -> Self {
        Pager { select, env, request, limited, binding: OnceCell::new() }
    }

    /// What values are evaluated with.
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

    /// The state that the client sent, if it sent one; refused unless it is of this very query.
    pub async fn open(&self) -> Result<Option<Box<PagingState>>, Error> {
        let Some(bytes) = &self.request.params.paging_state else { return Ok(None) };
        let trace = self.request.trace.as_deref();
        let state = self.request.coordinator.open_state(bytes, self.binding()?, trace).await;
        state.map(|state| Some(Box::new(state))).map_err(|error| read_error(error, &self.select.schema))
    }

    /// A state for the client.
    pub fn seal(&self, state: &PagingState) -> Result<Bytes, Error> {
        Ok(self.request.coordinator.seal_state(state, self.binding()?))
    }
}

impl Select {
    /// A hash of what decides which rows there are and in which order; columns that are merely shown are no part of it.
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

/// How far the limits of a filtered query, or of a grouped one, have come: what it adds to the coordinator's state. Where rows are
/// grouped, it is groups that are counted.
///
/// ```text
/// u8 'F', u64 rows still to come, u64 rows emitted of the last partition, the values of that partition's key
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilteredState {
    /// Rows that may still be emitted.
    pub remaining: u64,
    /// The key of the partition of the last row, and how many rows of it were emitted.
    pub partition: (Vec<u8>, u64),
}

const FILTERED: u8 = b'F';

impl FilteredState {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let (key, rows) = &self.partition;
        let mut out = Vec::with_capacity(17 + key.len());
        out.push(FILTERED);
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&rows.to_le_bytes());
        out.extend_from_slice(key);
        out.into()
    }

    /// From its bytes.
    pub fn decode(bytes: &Bytes) -> Option<FilteredState> {
        let (&tag, rest) = bytes.split_first()?;
        let (remaining, rest) = rest.split_first_chunk::<8>()?;
        let (rows, key) = rest.split_first_chunk::<8>()?;
        let remaining = u64::from_le_bytes(*remaining);
        (tag == FILTERED && remaining > 0)
            .then(|| FilteredState { remaining, partition: (key.to_vec(), u64::from_le_bytes(*rows)) })
    }
}

/// How many rows of a virtual table came before: all that its state has.
///
/// ```text
/// u8 'V', u64 rows
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VirtualState(pub u64);

const VIRTUAL: u8 = b'V';

impl VirtualState {
    /// Its bytes.
    pub fn encode(self) -> Bytes {
        let mut out = vec![VIRTUAL];
        out.extend_from_slice(&self.0.to_le_bytes());
        out.into()
    }

    /// From its bytes.
    pub fn decode(bytes: &Bytes) -> Option<VirtualState> {
        let (&tag, rest) = bytes.split_first()?;
        let rows = u64::from_le_bytes(rest.try_into().ok()?);
        (tag == VIRTUAL).then_some(VirtualState(rows))
    }
}

/// The protocol error for a paging state that is ours and makes no sense here.
pub(super) fn bad_state() -> Error {
    Error::Protocol("Invalid value for the paging state".to_owned())
}

/// Both parsers, for the fuzzer.
pub fn fuzz_states(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Some(state) = FilteredState::decode(&bytes) {
        assert_eq!(FilteredState::decode(&state.encode()), Some(state));
    }
    if let Some(state) = VirtualState::decode(&bytes) {
        assert_eq!(VirtualState::decode(&state.encode()), Some(state));
    }
}
