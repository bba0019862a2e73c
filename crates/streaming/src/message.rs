//! The messages between the leader, the receiver and the sources of a session. Pure.

use cluster::metadata::Metadata;
use cluster::tablets::TabletReplica;
use engine::streaming::StreamedSstable;
use model::id::TableId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The version of the messages. It is the first byte of a request.
const FORMAT: u8 = 1;

/// The tablet and the session that a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TabletSession {
    /// The table.
    pub table: TableId,
    /// The tablet.
    pub tablet: u32,
    /// The session of the tablet's stage.
    pub session: Uuid,
    /// The epoch of the table.
    pub epoch: u64,
    /// The number of the sender's metadata. The other node must not use older metadata.
    pub number: u64,
}

/// A request. Append-only: the stored form is the index in this list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// From the leader to the shard of a pending replica: receive the tablet. Answered when it has
    /// arrived, without content.
    Receive {
        /// What to receive.
        what: TabletSession,
        /// The replicas to receive it from, all of them.
        from: Vec<TabletReplica>,
    },
    /// From the receiver to a source: flush and pin the tablet. Answered with a [`PinResponse`].
    Pin(TabletSession),
    /// From the receiver to a source: send a range of the files. Answered with the bytes.
    Read {
        /// The session.
        session: Uuid,
        /// The epoch with which the tablet was pinned.
        epoch: u64,
        /// The first byte.
        start: u64,
        /// The end of the range.
        end: u64,
        /// Files that end before this byte are durable on the receiver, and may be released.
        received: u64,
    },
    /// From the receiver to a source: send a page of the tablet's mutations. Answered with a
    /// [`MutationPage`](crate::mutation_page::MutationPage).
    ReadMutations {
        /// The tablet and the session.
        what: TabletSession,
        /// The receiver's attempt. Its pages are from one reader.
        attempt: Uuid,
        /// Page 0 begins behind this serialised partition key.
        after: Option<Vec<u8>>,
        /// The number of the page.
        number: u64,
    },
    /// From the receiver to a source: send the keys of rows that are often read. Answered with
    /// [`HotKeys`].
    HotKeys(TabletSession),
}

/// The answer to [`Request::HotKeys`]: serialised partition keys in the order of the ring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HotKeys(pub Vec<Vec<u8>>);

/// The answer to [`Request::Pin`]. Append-only: the stored form is the index in this list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PinResponse {
    /// The files are pinned.
    Files(Vec<StreamedSstable>),
    /// The tablet must be streamed as mutations, for this reason.
    OnlyAsMutations(String),
}

impl Request {
    /// The bytes of the request.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![FORMAT]).expect("a request can always be encoded")
    }

    /// Decodes a request. Returns an error if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<Request, String> {
        match bytes.split_first() {
            Some((&FORMAT, body)) => {
                let (request, rest) = postcard::take_from_bytes(body).map_err(|error| error.to_string())?;
                if rest.is_empty() { Ok(request) } else { Err("bytes after the request".to_owned()) }
            }
            Some((format, _)) => Err(format!("format {format} of streaming requests is not known")),
            None => Err("an empty request".to_owned()),
        }
    }
}

impl PinResponse {
    /// Decodes the response. Returns an error if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<PinResponse, String> {
        decode_response(bytes)
    }
}

impl HotKeys {
    /// Decodes the response. Returns an error if the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<HotKeys, String> {
        decode_response(bytes)
    }
}

fn decode_response<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    let (response, rest) = postcard::take_from_bytes(bytes).map_err(|error| error.to_string())?;
    if rest.is_empty() { Ok(response) } else { Err("bytes after the response".to_owned()) }
}

impl TabletSession {
    /// Whether the metadata still has the session, and the table was not truncated since. The
    /// error gives the reason.
    pub fn check(&self, metadata: &Metadata) -> Result<(), String> {
        let table = metadata.table_by_id(self.table).ok_or("the table was dropped")?;
        if table.epoch != self.epoch {
            return Err("the table was truncated meanwhile".to_owned());
        }
        let moving = table.tablets.transition(self.tablet).and_then(|moving| moving.session);
        match moving == Some(self.session) {
            true => Ok(()),
            false => Err(format!("session {} has ended", self.session)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::HostId;

    fn requests() -> [Request; 5] {
        let (session, table) = (Uuid::from_u128(3), TableId(Uuid::from_u128(1)));
        let what = TabletSession { table, tablet: 2, session, epoch: 4, number: 300 };
        let from = vec![TabletReplica { host: HostId(Uuid::from_u128(5)), shard: 6 }];
        [
            Request::Receive { what, from },
            Request::Pin(what),
            Request::Read { session, epoch: 4, start: 1000, end: 2000, received: 7 },
            Request::ReadMutations { what, attempt: table.0, after: Some(vec![9, 8]), number: 5 },
            Request::HotKeys(what),
        ]
    }

    #[test]
    fn their_bytes_stay() {
        let id = |n: u8| [&[16u8][..], &[0; 15], &[n]].concat();
        let what = [id(1), vec![2], id(3), vec![4, 0xac, 0x02]].concat();
        let expected = [
            [vec![1, 0], what.clone(), vec![1], id(5), vec![6]].concat(),
            [vec![1, 1], what.clone()].concat(),
            [vec![1, 2], id(3), vec![4, 0xe8, 0x07, 0xd0, 0x0f, 7]].concat(),
            [vec![1, 3], what.clone(), id(1), vec![1, 2, 9, 8, 5]].concat(),
            [vec![1, 4], what].concat(),
        ];
        for (request, bytes) in requests().iter().zip(expected) {
            assert_eq!(request.encode(), bytes, "{request:?}");
            assert_eq!(Request::decode(&bytes).as_ref(), Ok(request));
        }
    }

    #[test]
    fn garbage_is_refused() {
        for request in requests() {
            let bytes = request.encode();
            for len in 0..bytes.len() {
                assert!(Request::decode(&bytes[..len]).is_err(), "{len} bytes of {request:?}");
            }
            assert!(Request::decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
            assert!(Request::decode(&[&[9], &bytes[1..]].concat()).is_err(), "another format");
        }
    }
}
