"""A model whose messages get features before it answers them."""

from collections.abc import Sequence

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.features import FeatureClient
from tidegate_dataplane.agent.nearline.message import InferenceTensor
from tidegate_dataplane.agent.nearline.model import AnsweringModel, NoAnswerError


class FeaturedModel:
    """Answers messages that have keys, with the features that the version takes that serves now."""

    def __init__(self, model: AnsweringModel, features: FeatureClient) -> None:
        self._model = model
        self._features = features

    async def close_connection(self) -> None:
        """Close the connections to both."""
        await self._model.close_connection()
        await self._features.close_client()

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        """Return the version that answered, and its outputs with the mark of features that may lack the newest events.

        After a swap to a version with other inputs, the first message is asked once more with the features of that version.

        Raises:
            NoAnswerError: there are no features or no answer.
            MalformedError: the inputs do not fit, or cannot be sent.
        """
        try:
            return await self._infer_once(request_id, inputs)
        except NoAnswerError as error:
            if error.fault is not FaultOrigin.MESSAGE or not await self._features.refresh_model():
                raise
            return await self._infer_once(request_id, inputs)

    async def _infer_once(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        featured = await self._features.compute_inputs(inputs)
        version, outputs = await self._model.infer_outputs(request_id, featured.tensors)
        return version, (*outputs, *featured.marks)
