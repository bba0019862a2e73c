//! The format of the small files with notes: version, length, body, and a CRC32 of these. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The bytes of a file with these notes.
pub fn encode<T: Serialize + ?Sized>(version: u8, notes: &T) -> Vec<u8> {
    let body = postcard::to_stdvec(notes).expect("plain values can be encoded");
    let mut out = vec![version];
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Like [`decode`], from a file with more bytes behind the notes.
pub fn decode_first<T: DeserializeOwned>(version: u8, bytes: &[u8]) -> Option<T> {
    let len = u32::from_le_bytes(*bytes.get(1..)?.first_chunk::<4>()?) as usize;
    decode(version, bytes.get(..len.checked_add(9)?)?)
}

/// Reads the notes of a file. None if it is damaged or of another version.
pub fn decode<T: DeserializeOwned>(version: u8, bytes: &[u8]) -> Option<T> {
    let (all, crc) = bytes.split_last_chunk::<4>()?;
    let (head, body) = all.split_first_chunk::<5>()?;
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] != version || len != body.len() || crc32fast::hash(all) != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::from_bytes(body).ok()
}
