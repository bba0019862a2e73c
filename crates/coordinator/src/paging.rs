//! The paging state: the position from which the next page of a query resumes. For the client it is
//! an opaque blob. Only this cluster can make one: the coordinator authenticates a state before it
//! decodes it.
//!
//! ```text
//! u8 version (2), u32 number of the key (all numbers are little-endian), 16 bytes of HMAC-SHA-256
//!     over: u8 version, u32 number of the key, 16 bytes table id, u8 whether there is a role,
//!     u32 length, role, 32 bytes hash of the statement's restrictions, and the body;
//!     of these only the body follows:
//! u64 when it was issued, in seconds since the epoch
//! 16 bytes query id
//! u64 remaining rows                (of LIMIT; all bits set: no limit)
//! u64 rows returned of the last partition
//! u8 region, i8 weight
//! u32 length, partition key; u32 length, clustering prefix
//! then any number of fields: u8 kind, u32 length, bytes; a reader skips an unknown kind
//!     1: what the query processor adds for itself
//!     2: the replicas that read the last page, and their tablet: i64 the token before the first,
//!        i64 the last token, host ids of 16 bytes
//!     3: reserved for a decision about read repair; today every read repairs what it finds
//!     4: 16 bytes table id, u32 CRC32 of it; not of virtual tables
//! ```
//!
//! The signature binds a state to a table, a role and a statement: a state of another statement
//! does not verify. The state also has the table's id, only to choose the error. If the table was
//! dropped, and perhaps created again, the client must not get a protocol error. The client has not
//! violated the protocol, and drivers close connections after such errors.

use super::{Coordinator, CoordinatorError};
use bytes::Bytes;
use cluster::metadata::PagingKeys;
use hmac::Mac;
use model::id::{HostId, QueryId, TableId};
use model::key::{Clustering, MAX_KEY_BYTES};
use model::token::Token;
use replica::{Position, Region, region_from_code};
use rt::sync::Deadline;
use rt::time::Duration;
use smallvec::SmallVec;
use thiserror::Error;

const VERSION: u8 = 2;
const TAG: usize = 16;
/// Bytes before the body: version, key number and signature.
const HEAD: usize = 1 + 4 + TAG;
/// The most bytes of a state. A longer one is refused before it is read. A key, a prefix and the
/// query processor's field have at most 64 KiB each.
pub const MAX_STATE_BYTES: usize = 256 << 10;
/// The most keys by which this node can be behind. A higher key number is considered forged.
const MOST_KEYS_BEHIND: u32 = 16;
/// How long to wait for a key that this node does not have yet.
const LONGEST_WAIT_FOR_KEY: Duration = Duration::from_secs(4);
/// Kind of the query processor's field.
const PROCESSOR_STATE: u8 = 1;
/// Kind of the field of the replicas.
const REPLICAS: u8 = 2;
/// Kind of the field of the table.
const TABLE: u8 = 4;
/// Bytes of the table's field.
const TABLE_FIELD: usize = 16 + 4;

/// A hash of all parts of a statement that determine its rows and their order. It is the same for a
/// literal and an equal bound value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatementHash(pub [u8; 32]);

/// The table, role and statement of a paging state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The table.
    pub table: TableId,
    /// The role that runs the query. None without authentication.
    pub role: Option<String>,
    /// The statement.
    pub statement: StatementHash,
}

/// Where a query resumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagingState {
    /// The query, the same on all pages.
    pub query: QueryId,
    /// The rows that the statement's LIMIT still allows.
    pub remaining: u64,
    /// The last position that the page consumed.
    pub position: Position,
    /// Rows returned of the partition of `position`.
    pub rows_in_last: u64,
    /// The replicas that read the page. None where only this node has replicas.
    pub replicas: Option<Box<LastReplicas>>,
    /// The query processor's own bytes. Empty if there are none.
    pub processor_state: Bytes,
}

/// The replicas that read the last part of a page. They may have kept their readers, so the next
/// page asks them first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastReplicas {
    /// The token before the first one of the tablet that they read.
    pub before: Token,
    /// Its last token.
    pub last: Token,
    /// Their nodes.
    pub hosts: SmallVec<[HostId; 3]>,
}

impl LastReplicas {
    /// Whether the replicas have read any of the tokens after `before` up to `last`.
    pub fn have_read(&self, before: Token, last: Token) -> bool {
        self.before < last && before < self.last
    }

    fn parse(bytes: &[u8]) -> Option<LastReplicas> {
        let mut rest = bytes;
        let (before, last) = (i64::from_le_bytes(take(&mut rest)?), i64::from_le_bytes(take(&mut rest)?));
        let mut hosts = SmallVec::new();
        while !rest.is_empty() {
            hosts.push(HostId::from_bytes(take(&mut rest)?));
        }
        Some(LastReplicas { before: Token(before), last: Token(last), hosts })
    }
}

/// Why a paging state is refused. The reason is traced; the client only learns that the state is
/// invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    /// The bytes do not have the form of a state of this version.
    #[error("it has another version")]
    Foreign,
    /// The key is unknown, or has been removed.
    #[error("its key is not known")]
    UnknownKey,
    /// The signature does not match: the state was changed, or made for another table, role or
    /// statement.
    #[error("it is not authentic for this statement")]
    Forged,
    /// The state is older than the expiry.
    #[error("it has expired")]
    Expired,
    /// The state is authentic, but cannot be decoded.
    #[error("it cannot be parsed")]
    Malformed,
}

impl PagingState {
    /// A state without a position in stored data, for results that the query processor pages
    /// itself.
    pub fn of_processor(processor_state: Bytes) -> PagingState {
        let position = Position { key: Bytes::new(), region: Region::Start, prefix: Clustering::EMPTY, weight: 0 };
        let query = QueryId::from_bytes([0; 16]);
        PagingState { query, remaining: u64::MAX, position, rows_in_last: 0, replicas: None, processor_state }
    }

    /// The blob for the client, signed with the newest key. `now` in seconds since the epoch.
    pub fn seal(&self, keys: &PagingKeys, binding: &Binding, now: i64) -> Bytes {
        let (key, mac) = keys.newest().expect("the metadata has a key from the first start on");
        let replicas = self.replicas.as_ref().map_or(0, |replicas| 21 + 16 * replicas.hosts.len());
        let lengths = self.position.key.len() + self.position.prefix.0.len() + self.processor_state.len() + replicas;
        let mut out = Vec::with_capacity(HEAD + 64 + lengths + 5 + TABLE_FIELD);
        out.push(VERSION);
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&[0; TAG]);
        self.write_body(now, &mut out);
        debug_assert!(
            PagingState::parse(&Bytes::copy_from_slice(&out[HEAD..])) == Some((self.clone(), now)),
            "a state that is sealed can be read again"
        );
        // Tables that can be dropped have ids of version 1. Virtual tables do not.
        if binding.table.0.get_version_num() == 1 {
            out.push(TABLE);
            out.extend_from_slice(&(TABLE_FIELD as u32).to_le_bytes());
            out.extend_from_slice(&table_field(binding.table));
        }
        let tag = signed(mac.clone(), binding, &out).finalize().into_bytes();
        out[HEAD - TAG..HEAD].copy_from_slice(&tag[..TAG]);
        out.into()
    }

    /// Decodes a blob if this cluster made it, for this binding, and it is not older than `expiry`.
    /// `now` in seconds since the epoch.
    pub fn open(
        bytes: &Bytes,
        keys: &PagingKeys,
        binding: &Binding,
        now: i64,
        expiry: Duration,
    ) -> Result<PagingState, Refused> {
        let key = key_of(bytes).ok_or(Refused::Foreign)?;
        let mac = keys.get(key).ok_or(Refused::UnknownKey)?;
        let tag = &bytes[HEAD - TAG..HEAD];
        signed(mac.clone(), binding, bytes).verify_truncated_left(tag).map_err(|_| Refused::Forged)?;
        let (state, issued) = PagingState::parse(&bytes.slice(HEAD..)).ok_or(Refused::Malformed)?;
        if now.saturating_sub(issued) > expiry.as_secs() as i64 {
            return Err(Refused::Expired);
        }
        Ok(state)
    }

    /// The table id that a blob contains. It is not authenticated.
    fn claimed_table(bytes: &Bytes) -> Option<TableId> {
        key_of(bytes)?;
        let field = bytes.len().checked_sub(TABLE_FIELD)?;
        let claimed = TableId::from_bytes(*bytes[field..].first_chunk::<16>()?);
        (bytes[field..] == table_field(claimed)).then_some(claimed)
    }

    /// Appends the body.
    pub fn write_body(&self, issued: i64, out: &mut Vec<u8>) {
        out.extend_from_slice(&issued.to_le_bytes());
        out.extend_from_slice(self.query.as_bytes());
        out.extend_from_slice(&self.remaining.to_le_bytes());
        out.extend_from_slice(&self.rows_in_last.to_le_bytes());
        out.push(self.position.region as u8);
        out.push(self.position.weight as u8);
        for bytes in [&self.position.key, &self.position.prefix.0] {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        if !self.processor_state.is_empty() {
            out.push(PROCESSOR_STATE);
            out.extend_from_slice(&(self.processor_state.len() as u32).to_le_bytes());
            out.extend_from_slice(&self.processor_state);
        }
        if let Some(replicas) = &self.replicas {
            out.push(REPLICAS);
            out.extend_from_slice(&(16 + 16 * replicas.hosts.len() as u32).to_le_bytes());
            out.extend_from_slice(&replicas.before.0.to_le_bytes());
            out.extend_from_slice(&replicas.last.0.to_le_bytes());
            replicas.hosts.iter().for_each(|host| out.extend_from_slice(host.as_bytes()));
        }
    }

    /// Decodes a body, and the second in which it was issued. The body is authentic, and is checked
    /// nevertheless.
    pub fn parse(body: &Bytes) -> Option<(PagingState, i64)> {
        let mut rest = &body[..];
        let issued = i64::from_le_bytes(take(&mut rest)?);
        let query = QueryId::from_bytes(take(&mut rest)?);
        let remaining = u64::from_le_bytes(take(&mut rest)?);
        let rows_in_last = u64::from_le_bytes(take(&mut rest)?);
        let [region, weight] = take(&mut rest)?;
        let weight = weight as i8;
        if !(-1..=1).contains(&weight) {
            return None;
        }
        let (key, prefix) = (blob(body, &mut rest)?, blob(body, &mut rest)?);
        if key.len() > MAX_KEY_BYTES {
            return None;
        }
        let (mut processor_state, mut replicas) = (Bytes::new(), None);
        while !rest.is_empty() {
            let [kind] = take(&mut rest)?;
            let field = blob(body, &mut rest)?;
            match kind {
                PROCESSOR_STATE => processor_state = field,
                REPLICAS => replicas = Some(Box::new(LastReplicas::parse(&field)?)),
                _ => {}
            }
        }
        let position = Position { key, region: region_from_code(region)?, prefix: Clustering(prefix), weight };
        Some((PagingState { query, remaining, position, rows_in_last, replicas, processor_state }, issued))
    }
}

fn table_field(table: TableId) -> [u8; TABLE_FIELD] {
    let mut field = [0; TABLE_FIELD];
    field[..16].copy_from_slice(table.as_bytes());
    field[16..].copy_from_slice(&crc32fast::hash(table.as_bytes()).to_le_bytes());
    field
}

/// The key number of bytes that look like a state of this version.
fn key_of(bytes: &[u8]) -> Option<u32> {
    let is_one = bytes.len() >= HEAD && bytes.len() <= MAX_STATE_BYTES && bytes[0] == VERSION;
    is_one.then(|| u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]))
}

/// Feeds the signed bytes: all of the state but the signature, and the binding.
fn signed(mut mac: cluster::metadata::paging_keys::PagingMac, binding: &Binding, state: &[u8]) -> impl Mac {
    mac.update(&state[..HEAD - TAG]);
    mac.update(binding.table.as_bytes());
    let role = binding.role.as_deref().unwrap_or_default();
    let mut head = [0; 5];
    head[0] = u8::from(binding.role.is_some());
    head[1..].copy_from_slice(&(role.len() as u32).to_le_bytes());
    mac.update(&head);
    mac.update(role.as_bytes());
    mac.update(&binding.statement.0);
    mac.update(&state[HEAD..]);
    mac
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

fn blob(body: &Bytes, rest: &mut &[u8]) -> Option<Bytes> {
    let len = u32::from_le_bytes(take(rest)?) as usize;
    let (head, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    Some(body.slice_ref(head))
}

impl Coordinator {
    /// The blob of a state for the client.
    pub fn seal_state(&self, state: &PagingState, binding: &Binding) -> Bytes {
        state.seal(&self.metadata().paging_keys, binding, rt::time::wall_seconds())
    }

    /// Decodes the paging state that a client sent. If it is refused, `trace` gets the reason, the
    /// client does not. If newer metadata may have its key, which another node received first, this
    /// waits for the key.
    pub async fn open_state(
        &self,
        bytes: &Bytes,
        binding: &Binding,
        trace: Option<&replica::Trace>,
    ) -> Result<PagingState, CoordinatorError> {
        if let Some(key) = key_of(bytes).filter(|key| self.is_to_come(*key)) {
            if let Some(trace) = trace {
                trace.event("The key of the paging state is not known yet: waiting for it");
            }
            // Boxed: it is rare, and must not enlarge the future of each page.
            Box::pin(self.wait_for_key(key)).await;
        }
        let expiry = self.limits.get().state_expiry;
        let now = rt::time::wall_seconds();
        PagingState::open(bytes, &self.metadata().paging_keys, binding, now, expiry).map_err(|why| {
            super::count(&self.counters.refused_states);
            if let Some(trace) = trace {
                trace.event(format!("The paging state is refused: {why}"));
            }
            let is_gone = |table: TableId| {
                table != binding.table && !table.is_named() && self.metadata().table_by_id(table).is_none()
            };
            if why == Refused::Forged && PagingState::claimed_table(bytes).is_some_and(is_gone) {
                let why =
                    "The table of the paging state does not exist: it was dropped, or the state is of another cluster";
                return CoordinatorError::Invalid(why.into());
            }
            CoordinatorError::PagingState
        })
    }

    /// Whether another node may have a key that this node has not received yet.
    fn is_to_come(&self, key: u32) -> bool {
        let newest = self.metadata().paging_keys.newest().map_or(0, |(newest, _)| newest);
        key > newest && key - newest <= MOST_KEYS_BEHIND && self.nodes().are_several()
    }

    async fn wait_for_key(&self, key: u32) {
        let until = Deadline::after(LONGEST_WAIT_FOR_KEY);
        while self.is_to_come(key) {
            // The metadata is not held while waiting: a change of it may wait until it is unused.
            let number = self.metadata().number;
            if !self.metadata.wait_for_number(number + 1, until).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
