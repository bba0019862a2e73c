//! A node of one shard in this thread, which serves requests frame by frame.

use bytes::Bytes;
use cql::api::{ClientState, QueryParams};
use cql::{Error, Processor, StatementResult};
use engine::commitlog::SyncMode;
use server::protocol::outbox::{Outbox, Reply};
use server::protocol::{Dialect, Frames, Next, Request, Version};
use server::stack::{self, Layers, Stack, StackConfig};
use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

/// The memory of the node, in bytes.
pub const MEMORY: usize = 512 << 20;
/// The longest frame, in bytes.
const MAX_FRAME: usize = 16 << 20;

/// The layers of the node.
pub static LAYERS: LazyLock<Layers> = LazyLock::new(Layers::default);

/// The node and its one client.
pub struct Harness {
    processor: Rc<Processor>,
    client: Rc<ClientState>,
    _stack: Stack,
}

impl Harness {
    /// A node on `dir`.
    pub async fn start(dir: &Path) -> Harness {
        Harness::start_with(dir, replica::ReplicaConfig::with_memory(MEMORY)).await
    }

    /// A node on `dir` with this configuration of its replica.
    pub async fn start_with(dir: &Path, replica: replica::ReplicaConfig) -> Harness {
        let mut config = StackConfig {
            sync: SyncMode::Periodic { period: Duration::from_secs(10) },
            segment_size: 32 << 20,
            log_size_limit: 1 << 30,
            auto_compaction: false,
            tombstone_warn_threshold: 1000,
            replica,
            ..StackConfig::new(dir, "bench", Ipv4Addr::LOCALHOST.into(), MEMORY)
        };
        config.info.shards = 1;
        let stack = stack::start(*LAYERS, config).await.expect("the node starts");
        let client = ClientState {
            keyspace: RefCell::new(None),
            role: RefCell::new(None),
            // Requests without an address are internal: rate limits ignore them.
            address: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000))),
            tablets_routing: Cell::new(false),
            cancel: rt::sync::Cancel::new(),
            identity: Default::default(),
        };
        Harness { processor: LAYERS.processor.get(), client: Rc::new(client), _stack: stack }
    }

    /// Executes a statement that must succeed.
    pub async fn run(&self, text: &str) {
        let answer = self.processor.query(&self.client, text, &QueryParams::default()).await;
        answer.unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    /// Prepares a statement.
    pub async fn prepare(&self, text: &str) -> [u8; 16] {
        self.processor.prepare(&self.client, text, None).await.unwrap_or_else(|error| panic!("{text}: {error}")).id
    }

    /// The size of the future of one request, in bytes.
    pub fn request_size(&self) -> usize {
        size_of_val(&self.processor.execute(&self.client, &[0; 16], &QueryParams::default()))
    }

    /// Serves one request, from the bytes of its frame to the bytes of its answer or error in
    /// `out`. `then` looks at the answer.
    #[inline(never)]
    pub async fn serve<T>(
        &self,
        frames: &RefCell<Frames>,
        out: &RefCell<Outbox>,
        then: impl FnOnce(&Result<StatementResult, Error>) -> T,
    ) -> T {
        let next = frames.borrow_mut().take_next();
        let Next::Frame(frame) = next else { panic!("a whole frame is there") };
        let mut reply = Reply::plain(Version::V4, frame.stream);
        let request = Request::decode(frame, Dialect::default(), MAX_FRAME);
        let Ok(Request::Execute { id, params, .. }) = &request else { panic!("a good EXECUTE") };
        reply.skip_metadata = params.skip_metadata;
        let answer = pin!(self.processor.execute(&self.client, id, params)).await;
        match &answer {
            Ok(answer) => out.borrow_mut().answer(&reply, answer),
            Err(error) => out.borrow_mut().error(&reply, error),
        }
        then(&answer)
    }
}

/// The frame of an EXECUTE with these values.
pub fn execute_frame(stream: i16, id: &[u8; 16], values: &[&[u8]]) -> Bytes {
    page_frame(stream, id, values, None, None)
}

/// The frame of an EXECUTE for one page.
pub fn page_frame(
    stream: i16,
    id: &[u8; 16],
    values: &[&[u8]],
    page_size: Option<i32>,
    paging_state: Option<&[u8]>,
) -> Bytes {
    // Room for all of it: building a frame must cost little, because it is measured too.
    let room = 64 + values.iter().map(|value| 4 + value.len()).sum::<usize>() + paging_state.map_or(0, <[u8]>::len);
    let mut body = Vec::with_capacity(room);
    body.extend_from_slice(&16u16.to_be_bytes());
    body.extend_from_slice(id);
    // LOCAL_ONE; flags: values, skip metadata.
    body.extend_from_slice(&10u16.to_be_bytes());
    body.push(0x01 | 0x02 | u8::from(page_size.is_some()) << 2 | u8::from(paging_state.is_some()) << 3);
    body.extend_from_slice(&(values.len() as u16).to_be_bytes());
    for value in values {
        body.extend_from_slice(&(value.len() as i32).to_be_bytes());
        body.extend_from_slice(value);
    }
    if let Some(size) = page_size {
        body.extend_from_slice(&size.to_be_bytes());
    }
    if let Some(state) = paging_state {
        body.extend_from_slice(&(state.len() as i32).to_be_bytes());
        body.extend_from_slice(state);
    }
    let mut frame = Vec::with_capacity(room);
    frame.extend_from_slice(&[4, 0]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.push(0x0A);
    frame.extend_from_slice(&(body.len() as i32).to_be_bytes());
    frame.extend_from_slice(&body);
    frame.into()
}
