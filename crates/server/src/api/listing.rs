//! Lists: read in chunks, cached, conditional or streamed.
//!
//! A list is read in chunks, each from one snapshot of the store, and no snapshot is held between chunks. Later chunks omit plants
//! that were created after the first chunk, so that a list ends and a page never exceeds its limit; a plant that exists
//! throughout is always included. A chunk is read when the client is ready to receive it. If the responses of a connection
//! have used up its buffers ([`crate::transport::BufferBudget`]), further chunks are small.

pub(super) mod cache;
mod chunk;
mod list_plants;
mod query;
mod read_plant;
mod streamed;

pub(super) use self::list_plants::list_plants;
pub(super) use self::query::{ListQuery, PlantQuery};
pub(super) use self::read_plant::read_plant;
