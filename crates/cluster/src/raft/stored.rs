//! The stored form of entries, votes and snapshots. It is not that of openraft, so that it does not
//! change with openraft.
//!
//! Everything is (version, body by postcard). The structures are append-only: a new field needs a
//! new version.
//!
//! [`open`] restores a group from its log, or creates the log of a new group of one node.

use super::{Command, Entry, LogId, Member, Membership, Vote};
use bytes::Bytes;
use engine::raft_log::RaftLog;
use engine::raft_log::RaftLogError;
use model::id::HostId;
use openraft::{CommittedLeaderId, EmptyNode, EntryPayload};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use uuid::Uuid;

/// The version of the stored form.
pub(super) const FORMAT: u8 = 1;

/// A snapshot with a longer body, in bytes, is encoded on a helper thread.
const LONG_BODY: usize = 1 << 20;

/// The index of a group's first entry.
const FIRST_INDEX: u64 = 1;

/// The position of an entry: its index in the log, and the term and leader that created it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Position {
    pub term: u64,
    pub leader: Uuid,
    pub index: u64,
}

impl Position {
    /// The leader that created the entry.
    pub fn made_by(self) -> Leader {
        Leader { term: self.term, node: self.leader }
    }
}

/// A leader. openraft allows several leaders in a term, one after the other. A later leader has the
/// higher node id. All of them are ordered, and so are the entries that they create.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Leader {
    pub term: u64,
    pub node: Uuid,
}

impl From<LogId> for Position {
    fn from(id: LogId) -> Self {
        Position { term: id.leader_id.term, leader: id.leader_id.node_id.0, index: id.index }
    }
}

impl From<Position> for LogId {
    fn from(position: Position) -> Self {
        LogId::new(CommittedLeaderId::new(position.term, Member(position.leader)), position.index)
    }
}

/// The stored form of a vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoredVote {
    pub term: u64,
    pub node: Uuid,
    /// Whether a majority granted it.
    pub committed: bool,
}

impl StoredVote {
    /// The node that is voted for, and the term.
    pub fn leader(self) -> Leader {
        Leader { term: self.term, node: self.node }
    }
}

impl From<Vote> for StoredVote {
    fn from(vote: Vote) -> Self {
        StoredVote { term: vote.leader_id.term, node: vote.leader_id.node_id.0, committed: vote.committed }
    }
}

impl From<StoredVote> for Vote {
    fn from(stored: StoredVote) -> Self {
        let node = Member(stored.node);
        if stored.committed { Vote::new_committed(stored.term, node) } else { Vote::new(stored.term, node) }
    }
}

/// The members of the group. During a membership change there are two lists of voters, and each
/// needs a majority.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Members {
    pub voters: Vec<Vec<Uuid>>,
    pub all: Vec<Uuid>,
}

impl Members {
    /// A group of one node.
    pub fn only(host: HostId) -> Members {
        Members { voters: vec![vec![host.0]], all: vec![host.0] }
    }

    /// Whether this node is the only voter.
    pub fn is_only(&self, host: HostId) -> bool {
        self.voters.iter().all(|voters| **voters == [host.0]) && !self.voters.is_empty()
    }
}

type Configuration = openraft::Membership<Member, EmptyNode>;

impl From<&Configuration> for Members {
    fn from(membership: &Configuration) -> Self {
        let voters = membership.get_joint_config().iter();
        Members {
            voters: voters.map(|voters| voters.iter().map(|member| member.0).collect()).collect(),
            all: membership.nodes().map(|(member, _)| member.0).collect(),
        }
    }
}

impl From<&Members> for Configuration {
    fn from(members: &Members) -> Self {
        let voters = members.voters.iter();
        let voters: Vec<BTreeSet<Member>> = voters.map(|voters| voters.iter().copied().map(Member).collect()).collect();
        let all: BTreeMap<Member, EmptyNode> = members.all.iter().map(|host| (Member(*host), EmptyNode {})).collect();
        Configuration::new(voters, all)
    }
}

/// The content of an entry. Append-only.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Payload {
    /// Nothing: the first entry of a new leader.
    Blank,
    /// A command for the machine.
    Command(#[serde(with = "byte_string")] Vec<u8>),
    /// The members from this entry on.
    Members(Members),
}

/// The stored form of an entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub at: Position,
    pub payload: Payload,
}

impl From<&Entry> for Record {
    fn from(entry: &Entry) -> Self {
        let payload = match &entry.payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(command) => Payload::Command(command.0.clone()),
            EntryPayload::Membership(membership) => Payload::Members(membership.into()),
        };
        Record { at: entry.log_id.into(), payload }
    }
}

impl From<Record> for Entry {
    fn from(record: Record) -> Self {
        let payload = match record.payload {
            Payload::Blank => EntryPayload::Blank,
            Payload::Command(command) => EntryPayload::Normal(Command(command)),
            Payload::Members(members) => EntryPayload::Membership((&members).into()),
        };
        Entry { log_id: record.at.into(), payload }
    }
}

/// The metadata of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SnapshotHead {
    /// The last entry that it includes.
    pub last: Option<Position>,
    /// The entry that set its members.
    pub members_at: Option<Position>,
    pub members: Members,
}

impl SnapshotHead {
    pub fn of(last: Option<LogId>, membership: &Membership) -> SnapshotHead {
        SnapshotHead {
            last: last.map(Position::from),
            members_at: membership.log_id().map(Position::from),
            members: membership.membership().into(),
        }
    }

    pub fn membership(&self) -> Membership {
        Membership::new(self.members_at.map(LogId::from), (&self.members).into())
    }

    pub fn meta(&self) -> openraft::SnapshotMeta<Member, EmptyNode> {
        openraft::SnapshotMeta {
            last_log_id: self.last.map(LogId::from),
            last_membership: self.membership(),
            snapshot_id: self.last.map_or_else(|| "0".to_owned(), |last| format!("{}-{}", last.term, last.index)),
        }
    }
}

/// The stored form of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SnapshotFile {
    pub head: SnapshotHead,
    #[serde(with = "byte_string")]
    pub body: Vec<u8>,
}

impl SnapshotFile {
    /// Encodes it: on the shard's helper thread, if it is long. Returns it, too.
    pub async fn encoded(self) -> (SnapshotFile, Bytes) {
        let is_long = self.body.len() > LONG_BODY;
        let encoded = move || {
            let bytes = encode(&self).into();
            (self, bytes)
        };
        if is_long { rt::offload::run(encoded).await } else { encoded() }
    }
}

/// Bytes, read and written at once. The stored form is the same as the form of a list of numbers,
/// which takes a step for each byte.
pub(super) mod byte_string {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    struct ByteString;

    impl Visitor<'_> for ByteString {
        type Value = Vec<u8>;

        fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
    }

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_bytes(ByteString)
    }
}

/// Encodes a value.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![FORMAT]).expect("plain values can be encoded")
}

/// Decodes a value.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&FORMAT, body)) => postcard::from_bytes(body).map_err(|error| error.to_string()),
        Some((version, _)) => Err(format!("format {version} is newer than this release supports")),
        None => Err("it is empty".into()),
    }
}

/// A group, restored from disk.
pub struct Opened {
    pub(super) log: Rc<RaftLog>,
    pub(super) host: HostId,
    /// The last entry of the latest snapshot.
    pub(super) saved: Option<LogId>,
    pub(super) applied: Option<LogId>,
    pub(super) membership: Membership,
    /// This node is the only voter.
    pub(super) alone: bool,
    /// The number of entries applied since the latest snapshot.
    pub(super) since_snapshot: u64,
    /// The body of the latest snapshot.
    pub snapshot: Option<Vec<u8>>,
    /// The commands after the snapshot that are known to be committed, in order.
    pub commands: Vec<Vec<u8>>,
}

fn damaged(dir: &Path, what: &str, why: String) -> RaftLogError {
    RaftLogError::Corrupt { file: dir.to_path_buf(), offset: 0, why: format!("{what} cannot be decoded: {why}") }
}

/// Opens the group of this node in `dir`. If there is none, creates a group of this node alone. Its
/// log begins with the snapshot `first`.
pub async fn open(dir: &Path, host: HostId, first: Vec<u8>) -> Result<Opened, RaftLogError> {
    if !RaftLog::exists(dir).await? {
        check_unused(dir, host).await?;
        create(dir, host, first).await?;
    }
    open_existing(dir, host).await
}

async fn open_existing(dir: &Path, host: HostId) -> Result<Opened, RaftLogError> {
    let log = RaftLog::open(dir, host).await?;
    let snapshot = match log.snapshot().await? {
        Some(bytes) => Some(decode::<SnapshotFile>(&bytes).map_err(|why| damaged(dir, "the snapshot", why))?),
        None => None,
    };
    let mut applied = snapshot.as_ref().and_then(|snapshot| snapshot.head.last).map(LogId::from);
    if let Some((purged, _)) = log.purged()
        && applied.is_none_or(|applied| applied.index < purged)
    {
        // A snapshot is durable before its entries are purged.
        let why = format!("the entries up to {purged} are in no snapshot: `snapshot` is missing, or an old one");
        return Err(RaftLogError::Corrupt { file: dir.to_path_buf(), offset: 0, why });
    }
    let saved = applied;
    let mut membership = snapshot.as_ref().map(|snapshot| snapshot.head.membership()).unwrap_or_default();
    let mut records: Vec<Record> = Vec::new();
    let from = applied.map_or(0, |applied| applied.index + 1);
    for bytes in log.entries(from, u64::MAX) {
        records.push(decode(&bytes).map_err(|why| damaged(dir, "an entry", why))?);
    }
    let last_members = records.iter().rev().find_map(|record| match &record.payload {
        Payload::Members(members) => Some(members.clone()),
        _ => None,
    });
    let alone = match last_members {
        Some(members) => members.is_only(host),
        None => Members::from(membership.membership()).is_only(host),
    };
    // The durable entries of the only voter are committed.
    let committed = if alone { u64::MAX } else { log.committed().unwrap_or(0) };
    let (mut commands, mut since_snapshot) = (Vec::new(), 0);
    for record in records.into_iter().take_while(|record| record.at.index <= committed) {
        let at = LogId::from(record.at);
        if at.index != applied.map_or(at.index, |applied| applied.index + 1) {
            return Err(damaged(dir, "the log", format!("entry {} does not follow the snapshot", at.index)));
        }
        applied = Some(at);
        since_snapshot += 1;
        match record.payload {
            Payload::Blank => {}
            Payload::Command(command) => commands.push(command),
            Payload::Members(members) => membership = Membership::new(Some(at), (&members).into()),
        }
    }
    let snapshot = snapshot.map(|snapshot| snapshot.body);
    if alone {
        lead(dir, &log, host, applied).await?;
    }
    Ok(Opened { log: Rc::new(log), host, saved, applied, membership, alone, since_snapshot, snapshot, commands })
}

/// Refuses a directory that has a snapshot and no log. A snapshot of the first entry is allowed: a
/// crash during the creation of a group leaves one.
async fn check_unused(dir: &Path, host: HostId) -> Result<(), RaftLogError> {
    let Some(bytes) = RaftLog::snapshot_in(dir, host).await? else { return Ok(()) };
    let snapshot = decode::<SnapshotFile>(&bytes).map_err(|why| damaged(dir, "the snapshot", why))?;
    match snapshot.head.last {
        Some(last) if last.index > FIRST_INDEX => {
            let why = "there is a snapshot, and its log is missing".to_owned();
            Err(RaftLogError::Corrupt { file: dir.to_path_buf(), offset: 0, why })
        }
        _ => Ok(()),
    }
}

/// Opens the log of a node in `dir` that is, or is to be, added to a group.
pub async fn open_to_join(dir: &Path, host: HostId) -> Result<Opened, RaftLogError> {
    // The log may be empty: the group sends its first entries or a snapshot.
    drop(RaftLog::open(dir, host).await?);
    open_existing(dir, host).await
}

/// Makes the only voter the leader: ensures that its stored vote is for itself, so that no election
/// is needed.
async fn lead(dir: &Path, log: &RaftLog, host: HostId, applied: Option<LogId>) -> Result<(), RaftLogError> {
    let vote = log.vote().map(|vote| decode(&vote)).transpose();
    let before: Option<StoredVote> = vote.map_err(|why| damaged(dir, "the vote", why))?;
    if before.is_some_and(|vote| vote.committed && vote.node == host.0) {
        return Ok(());
    }
    let term = before.map_or(0, |vote| vote.term).max(applied.map_or(0, |applied| applied.leader_id.term)) + 1;
    let vote = StoredVote { term, node: host.0, committed: true };
    log.save_vote(encode(&vote).into()).await
}

/// Creates the log of a group of one node, with that node as the leader.
async fn create(dir: &Path, host: HostId, body: Vec<u8>) -> Result<(), RaftLogError> {
    let first = Position { term: 1, leader: host.0, index: FIRST_INDEX };
    let head = SnapshotHead { last: Some(first), members_at: Some(first), members: Members::only(host) };
    let vote = StoredVote { term: 1, node: host.0, committed: true };
    let file = SnapshotFile { head, body };
    RaftLog::create(dir, host, &encode(&vote), first.index, &encode(&first), &encode(&file)).await
}

impl Opened {
    /// From now on the file at `path` records the end of the log, so that the next start detects a
    /// removed or truncated log.
    pub async fn keep_end(&self, path: &Path) -> Result<(), RaftLogError> {
        let kept = self.log.keep_end(path).await;
        kept.map_err(|error| RaftLogError::Io { path: path.to_path_buf(), error })
    }

    /// Whether this node is the only voter.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Appends a command that counts as committed and applied at once. Only if this node is the
    /// only voter.
    pub async fn append(&mut self, command: Vec<u8>) -> Result<(), RaftLogError> {
        assert!(self.alone, "others have to agree");
        let term = match self.log.vote().map(|vote| decode::<StoredVote>(&vote)) {
            Some(Ok(stored)) => stored.term,
            _ => return Err(RaftLogError::Failed("there is no vote".into())),
        };
        let at = Position { term, leader: self.host.0, index: self.applied.map_or(1, |applied| applied.index + 1) };
        let record = Record { at, payload: Payload::Command(command) };
        self.log.append(at.index, &[encode(&record).into()]).await?;
        self.applied = Some(at.into());
        self.since_snapshot += 1;
        Ok(())
    }

    /// Decodes the position of the last purged entry.
    pub(super) fn position(bytes: &Bytes) -> Result<LogId, String> {
        decode::<Position>(bytes).map(LogId::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored bytes of each kind of record. If they change, the format changes.
    #[test]
    fn the_written_form_stays() {
        let id = Uuid::from_u128(0x0102);
        let at = Position { term: 3, leader: id, index: 300 };
        let mut place = vec![3, 16];
        place.extend_from_slice(id.as_bytes());
        place.extend([0xac, 0x02]);
        let with = |tail: &[u8]| [&[FORMAT][..], &place, tail].concat();
        assert_eq!(encode(&Record { at, payload: Payload::Blank }), with(&[0]));
        assert_eq!(encode(&Record { at, payload: Payload::Command(vec![9, 8]) }), with(&[1, 2, 9, 8]));
        let mut members = vec![2, 1, 1, 16];
        members.extend_from_slice(id.as_bytes());
        members.extend([1, 16]);
        members.extend_from_slice(id.as_bytes());
        assert_eq!(encode(&Record { at, payload: Payload::Members(Members::only(HostId(id))) }), with(&members));
        let mut vote_bytes = vec![FORMAT, 7, 16];
        vote_bytes.extend_from_slice(id.as_bytes());
        vote_bytes.push(1);
        assert_eq!(encode(&StoredVote { term: 7, node: id, committed: true }), vote_bytes);
    }

    /// Byte strings have the form of lists of bytes, which releases before them wrote.
    #[test]
    fn byte_strings_are_written_as_lists() {
        #[derive(Serialize, Deserialize)]
        struct AsList {
            head: SnapshotHead,
            body: Vec<u8>,
        }
        let host = HostId(Uuid::from_u128(5));
        let at = Position { term: 3, leader: host.0, index: 300 };
        let head = SnapshotHead { last: Some(at), members_at: None, members: Members::only(host) };
        for len in [0, 1, 127, 128, 300, 70_000] {
            let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let file = SnapshotFile { head: head.clone(), body: body.clone() };
            let listed = encode(&AsList { head: head.clone(), body });
            assert_eq!(encode(&file), listed, "{len} bytes");
            assert_eq!(decode::<SnapshotFile>(&listed), Ok(file), "{len} bytes");
        }
        let mut bytes = vec![FORMAT, 1, 3, 16];
        bytes.extend_from_slice(host.0.as_bytes());
        bytes.extend([0xac, 0x02, 0, 1, 1, 16]);
        bytes.extend_from_slice(host.0.as_bytes());
        bytes.extend([1, 16]);
        bytes.extend_from_slice(host.0.as_bytes());
        bytes.extend([3, 9, 8, 7]);
        assert_eq!(encode(&SnapshotFile { head, body: vec![9, 8, 7] }), bytes);
        assert!(decode::<SnapshotFile>(&bytes[..bytes.len() - 1]).is_err(), "a byte is missing");
    }

    /// A long snapshot takes the helper thread, with the same result.
    #[test]
    fn a_long_snapshot_is_encoded_off_the_shard() {
        rt::block_on(async {
            let head = SnapshotHead { last: None, members_at: None, members: Members::only(HostId(Uuid::nil())) };
            for (len, offloaded) in [(LONG_BODY, 0), (LONG_BODY + 1, 1)] {
                let (before, file) = (rt::offload::count(), SnapshotFile { head: head.clone(), body: vec![7; len] });
                let expected = encode(&file);
                let (again, bytes) = file.clone().encoded().await;
                assert_eq!((rt::offload::count() - before, again == file, bytes == expected), (offloaded, true, true));
            }
        });
    }

    #[test]
    fn stored_records_round_trip() {
        let host = HostId(Uuid::from_u128(5));
        let at = Position { term: 2, leader: host.0, index: 8 };
        let two = Members {
            voters: vec![vec![host.0], vec![host.0, Uuid::from_u128(6)]],
            all: vec![host.0, Uuid::from_u128(6)],
        };
        for payload in [Payload::Blank, Payload::Command(vec![1]), Payload::Members(two.clone())] {
            let record = Record { at, payload };
            assert_eq!(Record::from(&Entry::from(record.clone())), record);
            assert_eq!(decode::<Record>(&encode(&record)), Ok(record));
        }
        for committed in [false, true] {
            let vote = StoredVote { term: 4, node: host.0, committed };
            assert_eq!(StoredVote::from(Vote::from(vote)), vote);
        }
        assert!(Members::only(host).is_only(host) && !two.is_only(host));
        assert!(decode::<Record>(&[FORMAT + 1, 0]).is_err() && decode::<Record>(&[]).is_err());
    }
}
