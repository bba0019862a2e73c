//! Reads a table in every way that must give the same rows: entirely and by partition, forward and
//! backward, in small pages, by slices and row by row.

use crate::checker::{Oracle, Shape};
use crate::layers::LAYERS;
use crate::model::SeenRow;
use crate::workload::{LONGEST_FILLER, ROWS};
use cql::StatementResult;
use cql::api::{ClientState, QueryParams, ResultKind, Rows};
use rand::Rng;
use rand::rngs::SmallRng;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// The average number of pages after which a client pauses.
const PAGES_PER_PAUSE: u64 = 8;
/// The length of a pause is below this.
const LONGEST_PAUSE_MILLIS: u64 = 6;

/// A client without role, address and keyspace: its statements are the node's own.
pub(crate) fn client() -> Rc<ClientState> {
    client_at(None)
}

/// A client at an address. Rate limits apply to clients with an address only.
pub(crate) fn client_at(address: Option<SocketAddr>) -> Rc<ClientState> {
    Rc::new(ClientState {
        keyspace: RefCell::new(None),
        role: RefCell::new(None),
        address,
        tablets_routing: Cell::new(false),
        cancel: rt::sync::Cancel::new(),
        identity: Default::default(),
    })
}

async fn ask(text: &str, params: &QueryParams) -> Result<StatementResult, String> {
    let processor = LAYERS.processor.get();
    processor.query(&client(), text, params).await.map_err(|error| format!("{text}: {error}"))
}

/// Executes a statement.
pub async fn execute(text: &str) -> Result<(), String> {
    ask(text, &QueryParams::default()).await.map(drop)
}

/// The number of rows that a query returns.
pub async fn count(text: &str) -> Result<usize, String> {
    query(text, 100).await.map(|rows| rows.len())
}

/// All rows of a query. Each value is under its column's name; nulls are left out.
async fn query(text: &str, page_size: i32) -> Result<Vec<BTreeMap<String, Vec<u8>>>, String> {
    let mut params = QueryParams { page_size: Some(page_size), ..QueryParams::default() };
    let mut all = Vec::new();
    loop {
        let answer = ask(text, &params).await?;
        let ResultKind::Rows(rows) = answer.kind else { return Err(format!("{text}: no rows")) };
        all.extend(decode(&rows));
        match rows.paging_state {
            Some(next) => params.paging_state = Some(next),
            None => return Ok(all),
        }
        // Sometimes leaves time for other events between two pages.
        if rt::random::below(PAGES_PER_PAUSE) == 0 {
            rt::time::sleep(Duration::from_millis(rt::random::below(LONGEST_PAUSE_MILLIS))).await;
        }
    }
}

/// The rows of an answer. Each value is under its column's name; nulls are left out.
pub fn decode(rows: &Rows) -> Vec<BTreeMap<String, Vec<u8>>> {
    let mut rest = &rows.body[..];
    let mut one = || {
        let mut row = BTreeMap::new();
        for column in &rows.metadata.columns {
            let len = take_int(&mut rest);
            if len >= 0 {
                let (value, tail) = rest.split_at(len as usize);
                rest = tail;
                row.insert(column.name.clone(), value.to_vec());
            }
        }
        row
    };
    (0..rows.count).map(|_| one()).collect()
}

fn take_int(bytes: &mut &[u8]) -> i32 {
    let (head, tail) = bytes.split_first_chunk::<4>().expect("four bytes of an int or a length");
    *bytes = tail;
    i32::from_be_bytes(*head)
}

/// The partition key and the row.
fn typed(row: &BTreeMap<String, Vec<u8>>) -> Result<(i32, SeenRow), String> {
    let int = |name: &str| row.get(name).map(|bytes| take_int(&mut &bytes[..]));
    // The bytes of a collection: the number of elements, then each element after its length.
    let numbers = |name: &str| -> Vec<i32> {
        let Some(bytes) = row.get(name) else { return Vec::new() };
        let mut rest = &bytes[4..];
        let mut out = Vec::new();
        while !rest.is_empty() {
            assert_eq!(take_int(&mut rest), 4, "the length of an int");
            out.push(take_int(&mut rest));
        }
        out
    };
    let pk = int("pk").ok_or("a row without pk")?;
    if let Some(filler) = row.get("filler")
        && (filler.len() >= LONGEST_FILLER || filler.iter().any(|byte| *byte != b'x'))
    {
        return Err(format!("partition {pk}: a filler that was never written"));
    }
    let pairs = numbers("m");
    Ok((
        pk,
        SeenRow {
            ck: int("ck"),
            s: int("s"),
            v: int("v"),
            x: int("x"),
            m: pairs.chunks(2).map(|pair| (pair[0], pair[1])).collect(),
            e: numbers("e").into_iter().collect(),
        },
    ))
}

async fn rows(text: &str, page_size: i32) -> Result<Vec<(i32, SeenRow)>, String> {
    query(text, page_size).await?.iter().map(typed).collect()
}

async fn rows_of(pk: i32, text: &str, page_size: i32) -> Result<Vec<SeenRow>, String> {
    let rows = rows(text, page_size).await?;
    if let Some((other, _)) = rows.iter().find(|(other, _)| *other != pk) {
        return Err(format!("{text}: a row of partition {other}"));
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// Waits until at least half of the present second is left, so that nothing expires during a read.
/// Returns the second.
pub async fn fresh_second() -> i64 {
    let into = rt::time::wall_micros() % 1_000_000;
    if into > 500_000 {
        rt::time::sleep(Duration::from_micros(1_001_000 - into as u64)).await;
    }
    rt::time::wall_seconds()
}

/// Whether a read that began in second `now` shows one moment. On a slow disk no read ends in its
/// second; but once all values with a TTL have expired, any time is good.
fn is_of_one_moment(oracle: &RefCell<Oracle>, now: i64) -> bool {
    rt::time::wall_seconds() == now || !oracle.borrow().may_expire(now)
}

/// Reads a partition in every way. Returns the rows, and the second in which they were read.
pub async fn read_partition(
    rng: &mut SmallRng,
    pk: i32,
    oracle: &RefCell<Oracle>,
) -> Result<(Vec<SeenRow>, i64), String> {
    loop {
        let now = fresh_second().await;
        let found = read_partition_once(rng, pk).await;
        if is_of_one_moment(oracle, now) {
            return Ok((found?, now));
        }
    }
}

async fn read_partition_once(rng: &mut SmallRng, pk: i32) -> Result<Vec<SeenRow>, String> {
    let page = rng.gen_range(1..5);
    let forward = rows_of(pk, &format!("SELECT * FROM w.t WHERE pk = {pk}"), page).await?;
    let same = |text: String, found: Vec<SeenRow>, expected: Vec<SeenRow>| {
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "partition {pk}: {text} found\n    {found:?}\nbut by pages of {page} rows there are\n    {forward:?}"
        ))
    };
    let text = format!("SELECT * FROM w.t WHERE pk = {pk} ORDER BY ck DESC");
    let backward = rows_of(pk, &text, rng.gen_range(1..5)).await?;
    same(text, backward, forward.iter().rev().cloned().collect())?;

    let (from, to) = (rng.gen_range(0..ROWS), rng.gen_range(0..=ROWS));
    let within = forward.iter().filter(|row| row.ck.is_some_and(|ck| from <= ck && ck < to));
    let mut within: Vec<SeenRow> = within.cloned().collect();
    let mut text = format!("SELECT * FROM w.t WHERE pk = {pk} AND ck >= {from} AND ck < {to}");
    if rng.gen_bool(0.5) {
        text += " ORDER BY ck DESC";
        within.reverse();
    }
    let slice = rows_of(pk, &text, rng.gen_range(1..3)).await?;
    same(text, slice, within)?;

    let ck = rng.gen_range(0..ROWS);
    let text = format!("SELECT * FROM w.t WHERE pk = {pk} AND ck = {ck}");
    let point = rows_of(pk, &text, 10).await?;
    same(text, point, forward.iter().filter(|row| row.ck == Some(ck)).cloned().collect())?;
    Ok(forward)
}

/// Reads the schema of the table.
pub async fn read_shape() -> Result<Shape, String> {
    let columns =
        query("SELECT column_name FROM system_schema.columns WHERE keyspace_name = 'w' AND table_name = 't'", 100)
            .await?;
    let has_x = columns.iter().any(|row| row.get("column_name").is_some_and(|name| name == b"x"));
    Ok(Shape { exists: !columns.is_empty(), has_x })
}

/// Reads the whole table in every way. Returns the rows, and the second in which they were read.
pub async fn read_all(
    rng: &mut SmallRng,
    oracle: &RefCell<Oracle>,
) -> Result<(BTreeMap<i32, Vec<SeenRow>>, i64), String> {
    'again: loop {
        let now = fresh_second().await;
        let mut found: BTreeMap<i32, Vec<SeenRow>> = BTreeMap::new();
        let mut last = None;
        for (pk, row) in rows("SELECT * FROM w.t", 3).await? {
            if last != Some(pk) && found.contains_key(&pk) {
                return Err(format!("the scan comes back to partition {pk}"));
            }
            last = Some(pk);
            found.entry(pk).or_default().push(row);
        }
        if !is_of_one_moment(oracle, now) {
            continue;
        }
        let partitions = oracle.borrow().partitions();
        for pk in partitions {
            let alone = read_partition_once(rng, pk).await;
            if !is_of_one_moment(oracle, now) {
                continue 'again;
            }
            let (alone, scanned) = (alone?, found.get(&pk).cloned().unwrap_or_default());
            if alone != scanned {
                return Err(format!("partition {pk}: alone it is\n    {alone:?}\nbut in a scan\n    {scanned:?}"));
            }
        }
        return Ok((found, now));
    }
}
