//! The HTTPS client for outgoing requests (issuer, trace collector, conformance check), and the certificates it trusts.

pub mod https;
pub mod trust;
