"""TensorFlow Serving's services: PredictionService and ModelService."""

import asyncio
from pathlib import Path

import grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from keras_transformer_server.codec import read_spec, to_array, to_proto
from keras_transformer_server.errors import RequestError, invalid, shorten
from keras_transformer_server.predict import Predictor
from keras_transformer_server.versions import UNKNOWN, Wanted

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"


def chosen(spec) -> dict:
    """Which model a ModelSpec means, as `Models.use` takes it."""
    choice = spec.WhichOneof("version_choice")
    return {
        "name": spec.name,
        "version": spec.version.value if choice == "version" else None,
        "label": spec.version_label if choice == "version_label" else None,
    }


class PredictionService:
    """The calls that make sense for a model that writes text; the others say why not."""

    def __init__(self, predictor: Predictor):
        self.predictor = predictor

    def methods(self) -> dict:
        """Each method's name, with the type of its request and what answers it."""
        return {
            "Predict": (predict_pb2.PredictRequest, self.predict),
            "GetModelMetadata": (get_model_metadata_pb2.GetModelMetadataRequest, self.metadata),
            "Classify": (classification_pb2.ClassificationRequest, _no_examples),
            "Regress": (regression_pb2.RegressionRequest, _no_examples),
            "MultiInference": (inference_pb2.MultiInferenceRequest, _no_examples),
        }

    async def predict(self, request, deadline):
        with self.predictor.models.use(**chosen(request.model_spec)) as model:
            signature = model.signature(request.model_spec.signature_name)
            # Checked before they are unpacked: a small message can claim to be a large tensor.
            signature.check({name: read_spec(name, one) for name, one in request.inputs.items()})
            arrays = {name: to_array(name, one) for name, one in request.inputs.items()}
            outputs = await self.predictor.predict(
                model, signature.name, arrays, request.output_filter, deadline
            )
            response = predict_pb2.PredictResponse(
                outputs={name: to_proto(array) for name, array in outputs.items()}
            )
            _fill(response.model_spec, request.model_spec.name, model.version, signature.name)
        return response

    async def metadata(self, request, deadline):
        if not request.metadata_field:
            raise invalid("metadata_field is empty; expected signature_def.")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"metadata_field has {field!r}; expected signature_def.")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        with self.predictor.models.use(**chosen(request.model_spec)) as model:
            response.metadata["signature_def"].Pack(model.signature_map)
            _fill(response.model_spec, request.model_spec.name, model.version)
        return response


class ModelService:
    """Which versions there are, and which there should be."""

    def __init__(self, predictor: Predictor):
        self.models = predictor.models
        self.reload_root = predictor.settings.reload_root

    def methods(self) -> dict:
        return {
            "GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, self.status),
            "HandleReloadConfigRequest": (model_management_pb2.ReloadConfigRequest, self.reload),
        }

    async def status(self, request, deadline):
        response = get_model_status_pb2.GetModelStatusResponse()
        for number, version in self.models.status(**chosen(request.model_spec)):
            status = response.model_version_status.add(version=number, state=version.state)
            if version.error:
                status.status.error_code = UNKNOWN
                status.status.error_message = version.error
            else:
                status.status.SetInParent()  # OK
        return response

    async def reload(self, request, deadline):
        """Serves the models of a new list, and no others; answers when they are ready."""
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid("config has no model_config_list, which is what can be changed.")
        wanted = {}
        for config in request.config.model_config_list.config:
            if not config.name or config.name in wanted:
                raise invalid(f"config.name is {config.name!r}; each model needs one of its own.")
            wanted[config.name] = self._wanted(config)
        if not self.reload_root and wanted.keys() != self.models.wanted.keys():
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, f"config has the models "
                f"{', '.join(wanted) or 'none'}; without a reload_root this server goes on with "
                f"{', '.join(self.models.wanted)}.")  # fmt: skip
        if not wanted:
            raise invalid("model_config_list is empty; give at least one model.")
        # It is done to its end even if the client does not wait for it.
        await asyncio.shield(asyncio.create_task(self.models.change(wanted)))
        response = model_management_pb2.ReloadConfigResponse()
        problems = [problem for name in wanted for problem in self.models.problems(name)]
        if problems:
            response.status.error_code = UNKNOWN
            response.status.error_message = "; ".join(problems)
        else:
            response.status.SetInParent()
        return response

    def _wanted(self, config):
        path, known = Path(config.base_path), self.models.wanted.get(config.name)
        if known and path != known.path:
            raise invalid(
                f"config.base_path of {config.name!r} is {config.base_path!r}; it is served from "
                f"{str(known.path)!r}. Give what is elsewhere another name."
            )
        # A SavedModel is a program: whoever can have one loaded can have it run.
        root = self.reload_root and Path(self.reload_root).resolve()
        if not known and not (root and _resolve(path).is_relative_to(root)):
            raise RequestError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"config.base_path is {config.base_path!r}; only what is served already can be "
                "changed, or models in the server's reload_root.",
            )
        policy = config.model_version_policy
        latest = policy.latest.num_versions or 1
        if policy.WhichOneof("policy_choice") == "all":
            latest = 0
        return Wanted(path, latest, tuple(policy.specific.versions), dict(config.version_labels))


def _resolve(path):
    try:
        return path.resolve()
    except (ValueError, OSError):
        raise invalid(f"config.base_path is {shorten(str(path))}, which is no path.") from None


async def _no_examples(request, deadline):
    raise RequestError(
        grpc.StatusCode.UNIMPLEMENTED,
        "This server's models take text, not tf.Example: call Predict.",
    )


def _fill(spec, name, version, signature=""):
    spec.name, spec.version.value, spec.signature_name = name, version, signature
