//! The decision which requests are recorded.

use std::str::FromStr;

use super::id::TraceId;
use super::parent::Parent;

/// Share of traces that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio {
    /// Number of the 2⁵⁶ possible values of a trace id's random part.
    taken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a share from 0 (none) to 1 (all), for example 0.05 for one in twenty")]
pub struct SampleRatioError;

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    fn from_str(text: &str) -> Result<Self, SampleRatioError> {
        let share: f64 = text.parse().map_err(|_| SampleRatioError)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(SampleRatioError);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2⁵⁶")]
        let taken = (56_f64.exp2() * share) as u64;
        Ok(Self { taken })
    }
}

impl SampleRatio {
    const ALL: Self = Self { taken: 1 << 56 };
    const NONE: Self = Self { taken: 0 };

    fn takes(self, trace: TraceId) -> bool {
        trace.random_part() < self.taken
    }
}

/// Sampler of traces. A parent-based one follows the client's decision for requests that are part of the client's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    parent_based: bool,
    ratio: SampleRatio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or \
     parentbased_traceidratio"
)]
pub struct SamplerError;

/// Follows the client, and records all other requests.
impl Default for Sampler {
    fn default() -> Self {
        Self::parent_based(SampleRatio::ALL)
    }
}

impl Sampler {
    /// Follows the client, and records a share of all other requests.
    pub fn parent_based(ratio: SampleRatio) -> Self {
        Self { parent_based: true, ratio }
    }

    /// Returns the sampler that OpenTelemetry gives this name; the ratio is for those that have one, and is 1 without it.
    pub fn named(name: &str, ratio: Option<SampleRatio>) -> Result<Self, SamplerError> {
        let (parent_based, root) = match name.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, name),
        };
        let ratio = match root {
            "always_on" => SampleRatio::ALL,
            "always_off" => SampleRatio::NONE,
            "traceidratio" => ratio.unwrap_or(SampleRatio::ALL),
            _ => return Err(SamplerError),
        };
        Ok(Self { parent_based, ratio })
    }

    /// Decides about a request of a client's trace.
    pub(super) fn samples_child_of(self, parent: Parent) -> bool {
        if self.parent_based { parent.sampled } else { self.ratio.takes(parent.trace) }
    }

    /// Decides about a request that starts a trace.
    pub(super) fn samples_root(self, trace: TraceId) -> bool {
        self.ratio.takes(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::SpanId;
    use super::*;

    const LARGEST: TraceId = TraceId([0xff; 16]);

    fn ratio(text: &str) -> SampleRatio {
        text.parse().expect("a ratio")
    }

    #[test]
    fn ratios() {
        assert_eq!([ratio("0"), ratio("1")], [SampleRatio::NONE, SampleRatio::ALL]);
        assert_eq!(ratio("0.5").taken, 1 << 55);
        assert!(ratio("1").takes(LARGEST) && !ratio("0.999").takes(LARGEST));
        for wrong in ["", "-0.1", "1.1", "NaN", "inf", "10%", "a"] {
            assert_eq!(wrong.parse::<SampleRatio>(), Err(SampleRatioError), "{wrong}");
        }
    }

    #[test]
    fn samplers_decide_by_name() {
        let half = Some(ratio("0.5"));
        let parent = |sampled| Parent { trace: LARGEST, span: SpanId([1; 8]), sampled };
        for (name, root, sampled_parent, unsampled_parent) in [
            ("always_on", true, true, true),
            ("always_off", false, false, false),
            ("traceidratio", false, false, false),
            ("parentbased_always_on", true, true, false),
            ("parentbased_always_off", false, true, false),
            ("parentbased_traceidratio", false, true, false),
        ] {
            let sampler = Sampler::named(name, half).expect(name);
            let decisions = [true, false].map(|sampled| sampler.samples_child_of(parent(sampled)));
            assert_eq!(
                (sampler.samples_root(LARGEST), decisions),
                (root, [sampled_parent, unsampled_parent]),
                "{name}"
            );
        }
        assert_eq!(Sampler::named("parentbased_traceidratio", None), Ok(Sampler::default()));
        for wrong in ["", "jaeger_remote", "ALWAYS_ON", "parentbased_"] {
            assert_eq!(Sampler::named(wrong, half), Err(SamplerError), "{wrong}");
        }
    }
}
