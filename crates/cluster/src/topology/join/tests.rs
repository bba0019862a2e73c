//! The form of the messages.

use super::*;
use crate::topology::node::tests::node;

#[test]
fn the_form_of_messages_stays() {
    let address: SocketAddr = ([127, 0, 0, 1], 7000).into();
    let place = [0, 127, 0, 0, 1, 0xd8, 0x36];
    let bytes = |head: &[u8]| [&[FORMAT], head, &place].concat();
    assert_eq!(encode(&JoinRequest::Discover([address].into())), bytes(&[0, 1]));
    assert_eq!(encode(&JoinResponse::Searching([address].into())), bytes(&[0, 1]));
    assert_eq!(encode(&JoinResponse::InCluster), [FORMAT, 1].as_slice());
    assert_eq!(encode(&JoinResponse::Elsewhere(address)), bytes(&[3]));
    assert_eq!(encode(&JoinResponse::Refused("x".into())), [FORMAT, 5, 1, b'x'].as_slice());
    assert_eq!(encode(&JoinRequest::Locate([address].into())), bytes(&[2, 1]));
    assert_eq!(encode(&JoinResponse::Located([address].into())), bytes(&[6, 1]));
    let joining = JoinRequest::Join(Box::new(node(1, "dc1", "r1")));
    assert_eq!(decode::<JoinRequest>(&encode(&joining)), Ok(joining));
}
