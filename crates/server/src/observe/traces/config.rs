//! Configuration of the trace export: the collector's address, the header fields of requests to it, and the resource that
//! spans are exported for.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use percent_encoding::percent_decode_str;
use plantstore_client::trust::{self, TrustError};
use plantstore_client::{Cleartext, Client, HttpUrl, Proxies, Settings, UrlError};

use super::id::random;
use super::sampler::Sampler;

/// Path for spans, relative to the collector's base URL.
const TRACES: &str = "/v1/traces";
/// Bytes of a response of the collector at most.
const RESPONSE_MAX: usize = 1 << 20;
/// Header fields that the exporter sets itself.
const RESERVED: [HeaderName; 10] = [
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    USER_AGENT,
];

/// URL that spans are sent to, `http://` or `https://`.
#[derive(Clone, Debug)]
pub struct Endpoint(HttpUrl);

/// A text is not the URL of a collector. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error(
        "write it as http://HOST:PORT or https://HOST:PORT, without user name, password, query and fragment, for example \
         http://127.0.0.1:4318; {TRACES} is added to it"
    )]
    Base,
    #[error(
        "write it as http://HOST:PORT/PATH or https://HOST:PORT/PATH, without user name, password and fragment, for example \
         http://127.0.0.1:4318{TRACES}"
    )]
    Traces,
}

/// Parses the collector's base URL, to which the path for spans is added.
impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.contains('?') {
            return Err(EndpointError::Base);
        }
        let base = text.strip_suffix('/').unwrap_or(text);
        let address = HttpUrl::parse(&format!("{base}{TRACES}"), Cleartext::Anywhere);
        address.map(Self).map_err(|_: UrlError| EndpointError::Base)
    }
}

impl Endpoint {
    /// Parses the URL for spans, to which nothing is added.
    pub fn for_traces(text: &str) -> Result<Self, EndpointError> {
        let address = HttpUrl::parse(text, Cleartext::Anywhere);
        address.map(Self).map_err(|_: UrlError| EndpointError::Traces)
    }
}

/// Header fields of requests to the collector. Their values may be secret, so they are neither shown nor logged.
#[derive(Default)]
pub struct ExportHeaders(HeaderMap);

/// A list of keys and values is malformed. The messages do not quote it, because it may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyValueListError {
    #[error("entry {0} is malformed: write NAME=VALUE,NAME=VALUE, with special characters percent-encoded")]
    Malformed(usize),
    #[error("entry {0} is not a valid header field")]
    NotAHeader(usize),
    #[error("the header field {0} is set by the exporter")]
    Reserved(HeaderName),
}

impl FromStr for ExportHeaders {
    type Err = KeyValueListError;

    fn from_str(text: &str) -> Result<Self, KeyValueListError> {
        let mut headers = HeaderMap::new();
        for (entry, (name, value)) in key_value_list(text)?.into_iter().enumerate() {
            let invalid = KeyValueListError::NotAHeader(entry + 1);
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid.clone())?;
            if RESERVED.contains(&name) {
                return Err(KeyValueListError::Reserved(name));
            }
            let mut value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| invalid)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self(headers))
    }
}

/// Attributes of the process that spans are exported for.
pub struct Resource(Vec<(String, String)>);

impl Resource {
    /// Takes attributes as `KEY=VALUE,KEY=VALUE`, which replace the service's own, and the name of the service if it is given.
    pub fn new(attributes: &str, service_name: Option<&str>) -> Result<Self, KeyValueListError> {
        // Without randomness, all processes of the service have the same id.
        let instance = u128::from_be_bytes(random().unwrap_or_default());
        let mut resource = Self(Vec::new());
        resource.set("service.name", "plantstore");
        resource.set("service.version", env!("CARGO_PKG_VERSION"));
        resource.set("service.instance.id", &format!("{instance:032x}"));
        for (key, value) in key_value_list(attributes)? {
            resource.set(&key, &value);
        }
        if let Some(name) = service_name {
            resource.set("service.name", name);
        }
        Ok(resource)
    }

    fn set(&mut self, key: &str, value: &str) {
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => value.clone_into(known),
            None => self.0.push((key.to_owned(), value.to_owned())),
        }
    }

    pub(super) fn attributes(&self) -> &[(String, String)] {
        &self.0
    }
}

/// Parses a list as OpenTelemetry defines it for environment variables: percent-encoded, spaces around keys and values.
fn key_value_list(text: &str) -> Result<Vec<(String, String)>, KeyValueListError> {
    let decode = |text: &str| percent_decode_str(text.trim()).decode_utf8().ok().map(String::from);
    let entries = text.split(',').filter(|entry| !entry.trim().is_empty()).enumerate();
    let pairs = entries.map(|(number, entry)| {
        let pair = entry.split_once('=').and_then(|(key, value)| Some((decode(key)?, decode(value)?)));
        pair.filter(|(key, _)| !key.is_empty()).ok_or(KeyValueListError::Malformed(number + 1))
    });
    pairs.collect()
}

/// Compression of requests to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
}

pub struct CollectorSettings<'a> {
    pub endpoint: Endpoint,
    /// File of the certificates of authorities to trust instead of the system's.
    pub authorities: Option<&'a Path>,
    pub headers: ExportHeaders,
    pub compression: Compression,
    /// Timeout of one request to the collector.
    pub timeout: Duration,
    pub resource: Resource,
    pub sampler: Sampler,
    pub proxies: Proxies,
}

/// A collector of traces, and the requests that are reported to it.
pub struct Collector {
    pub(super) address: HttpUrl,
    pub(super) client: Client,
    pub(super) headers: HeaderMap,
    pub(super) compression: Compression,
    pub(super) timeout: Duration,
    pub(super) resource: Resource,
    pub(super) sampler: Sampler,
}

impl Collector {
    pub fn new(settings: CollectorSettings<'_>) -> Result<Self, TrustError> {
        let CollectorSettings { endpoint, authorities, headers, compression, timeout, resource, sampler, proxies } =
            settings;
        let (address, ca_option) = (endpoint.0, "--otlp-ca");
        let roots = trust::authorities_for(&address, authorities, ca_option)?;
        let (cleartext, response_max) = (Cleartext::Anywhere, RESPONSE_MAX);
        let client = Client::new(Settings { roots, ca_option, cleartext, proxies, response_max });
        Ok(Self { address, client, headers: headers.0, compression, timeout, resource, sampler })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_are_decoded_and_hidden() {
        let headers: ExportHeaders = " api-key = a%20b%2Cc==, X-Tenant=plants,,".parse().expect("header fields");
        assert_eq!(
            (&headers.0["api-key"], &headers.0["x-tenant"]),
            (&"a b,c==".parse().expect("a value"), &"plants".parse().expect("a value"))
        );
        assert!(headers.0.values().all(HeaderValue::is_sensitive));
        let fault = |text: &str| text.parse::<ExportHeaders>().err();
        for wrong in ["a=1,secret", "a=1,=secret", "a=1,secret=%ff"] {
            assert_eq!(fault(wrong), Some(KeyValueListError::Malformed(2)), "{wrong}");
        }
        for wrong in ["a=1,sec ret=1", "a=1,b=sec%0Aret"] {
            assert_eq!(fault(wrong), Some(KeyValueListError::NotAHeader(2)), "{wrong}");
        }
        assert_eq!(fault("Content-Length=1"), Some(KeyValueListError::Reserved(CONTENT_LENGTH)));
        assert_eq!(fault("User-Agent=garden"), Some(KeyValueListError::Reserved(USER_AGENT)));
    }

    #[test]
    fn resource_attributes_replace_the_services_own() {
        let value = |resource: &Resource, key: &str| {
            let mut found = resource.0.iter().filter(|(known, _)| known == key).map(|(_, value)| value.clone());
            (found.next(), found.next())
        };
        let resource =
            Resource::new("service.name=garden,deployment.environment.name=a%3Db", None).expect("a resource");
        assert_eq!(value(&resource, "service.name"), (Some("garden".to_owned()), None));
        assert_eq!(value(&resource, "deployment.environment.name").0.as_deref(), Some("a=b"));
        assert_eq!(value(&resource, "service.version").0.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        let resource = Resource::new("service.name=garden", Some("balcony")).expect("a resource");
        assert_eq!(value(&resource, "service.name"), (Some("balcony".to_owned()), None));
        assert_eq!(Resource::new("nonsense", None).err(), Some(KeyValueListError::Malformed(1)));
    }
}
