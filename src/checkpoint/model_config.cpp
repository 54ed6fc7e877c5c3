#include "checkpoint/model_config.h"
